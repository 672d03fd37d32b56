"""comparison.json: the record itself, strict and readable."""

from __future__ import annotations

import json

from evalharness.records import Comparison
from evalharness.store import as_mapping, decode


def render(comparison: Comparison) -> str:
    """The record as indented JSON; a figure that does not exist is null."""
    return json.dumps(as_mapping(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str, where: str = "comparison.json") -> Comparison:
    """Read what `render` wrote; raises RecordError, also for a newer schema."""
    return decode(Comparison, text, where)
