"""The answers of one (task, arm) as columns: a million of them fit in tens of megabytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evalharness.records import Sample


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Columns of one (task, arm), ordered by (doc_id, repeat, doc_hash)."""

    @classmethod
    def from_samples(cls, samples: Iterable[Sample]) -> SampleTable:
        """Columns of `samples`."""
        raise NotImplementedError

    @classmethod
    def from_jsonl(cls, path: Path) -> SampleTable:
        """Columns straight from a samples file."""
        raise NotImplementedError
