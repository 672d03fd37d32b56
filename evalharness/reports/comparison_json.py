"""comparison.json: the record itself, strict and readable."""

from __future__ import annotations

from evalharness.records import Comparison
from evalharness.store import decode, pretty


def render(comparison: Comparison) -> str:
    """The record as indented JSON; a figure that does not exist is null."""
    return pretty(comparison)


def parse(text: str, where: str = "comparison.json") -> Comparison:
    """Read what `render` wrote; raises RecordError, also for a newer schema."""
    return decode(Comparison, text, where)
