"""Views of a comparison: every one is a function of the record alone."""

from __future__ import annotations

from importlib import import_module

from evalharness.records import Comparison

# name -> (file it is written to, module whose `render(comparison) -> str` makes it)
REPORTS: dict[str, tuple[str, str]] = {
    "json": ("comparison.json", "evalharness.reports.comparison_json"),
    "csv": ("comparison.csv", "evalharness.reports.comparison_csv"),
    "md": ("comparison.md", "evalharness.reports.markdown"),
}


def write_tables(comparison: Comparison) -> dict[str, str]:
    """File name -> text of every report in REPORTS; the store writes them."""
    return {file: str(import_module(module).render(comparison)) for file, module in REPORTS.values()}
