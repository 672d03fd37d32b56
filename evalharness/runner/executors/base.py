"""Where a run's replicas live: the Executor protocol, and what a user may ask of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from evalharness.engines.base import Engine
from evalharness.spec import RunSpec
from evalharness.store import RunFolder


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to run. None of it decides an answer, so none of it is part of the spec or the fingerprint.

    `address` is Ray's; `replicas` None takes as many as there is room for; `slurm` are options of sbatch, KEY=VALUE.
    """

    executor: str = "local"
    address: str = ""
    replicas: int | None = None
    slurm: tuple[str, ...] = ()


class Executor(Protocol):
    """Brings up the replicas of a run. To the runner all of them together are one engine."""

    def engine(self, spec: RunSpec, folder: RunFolder) -> Engine:
        """A new, unopened engine for the arms of `spec`; what it prints goes to the logs of `folder`."""

    def about(self) -> Mapping[str, str | int]:
        """What the run's provenance says of it: its name, its version, its replicas."""

    def close(self) -> None:
        """Give back whatever it holds beyond its engines."""
