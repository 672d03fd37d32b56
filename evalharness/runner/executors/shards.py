"""Cuts an arm's questions into shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalharness.engines.base import Request


@dataclass(slots=True)
class Shard:
    """Requests for one replica: those `missing` by id, and why each replica that had them before was `lost`."""

    missing: dict[str, Request]
    lost: list[str] = field(default_factory=list)


def split(requests: Sequence[Request], parts: int) -> list[Shard]:
    """Deal `requests` out to at most `parts` shards, none empty, none more than one longer than another.

    A request's seed is its own, so the union of the shards' answers is the unbroken run's for any number of parts.
    """
    dealt = [requests[start::parts] for start in range(min(parts, len(requests)))]
    return [Shard({request.id: request for request in part}) for part in dealt]
