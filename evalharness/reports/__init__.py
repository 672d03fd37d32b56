"""Views of a comparison: every one is a function of the record alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from evalharness.errors import UnknownName
from evalharness.records import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from evalharness.reports.signoff import Signoff

# name -> (file it is written to, module whose `render(comparison) -> str` makes it)
REPORTS: dict[str, tuple[str, str]] = {
    "json": ("comparison.json", "evalharness.reports.comparison_json"),
    "csv": ("comparison.csv", "evalharness.reports.comparison_csv"),
    "md": ("comparison.md", "evalharness.reports.markdown"),
}

# format -> (file it is written to, `module:function` that makes it of a Signoff), one or more
SIGNOFF: dict[str, tuple[tuple[str, str], ...]] = {
    "html": (
        ("signoff.html", "evalharness.reports.html:render"),
        ("report.html", "evalharness.reports.html:render_full"),
    ),
    "pdf": (("signoff.pdf", "evalharness.reports.pdf:render"),),
    "md": (("signoff.md", "evalharness.reports.signoff_markdown:render"),),
    "json": (("signoff.json", "evalharness.reports.signoff_json:render"),),
    "junit": (("junit.xml", "evalharness.reports.junit:render"),),
}


def write_tables(comparison: Comparison) -> dict[str, str]:
    """File name -> text of every report in REPORTS; the store writes them."""
    return {file: str(import_module(module).render(comparison)) for file, module in REPORTS.values()}


def present(folder: Path) -> list[str]:
    """The sign-off formats that a run folder holds."""
    return [name for name, files in SIGNOFF.items() if any((folder / file).exists() for file, _ in files)]


def write_signoff(signoff: Signoff, formats: Iterable[str]) -> dict[str, bytes]:
    """File name -> content of the sign-off in each of `formats`; raises UnknownName."""
    made = {}
    for name in formats:
        if name not in SIGNOFF:
            raise UnknownName("format", name, SIGNOFF)
        for file, maker in SIGNOFF[name]:
            module, _, function = maker.partition(":")
            content = getattr(import_module(module), function)(signoff)
            made[file] = content if isinstance(content, bytes) else str(content).encode()
    return made
