"""Views of a comparison: every one is a function of the record alone."""

from __future__ import annotations

from evalharness.records import Comparison


def write_tables(comparison: Comparison) -> dict[str, str]:
    """File name -> text of comparison.json, comparison.csv and comparison.md; the store writes them."""
    raise NotImplementedError
