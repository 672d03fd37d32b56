"""Importing other people's runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evalharness.commands import runs
from evalharness.errors import UnknownName
from evalharness.importing import import_lm_eval
from evalharness.reports.words import plain

FORMATS = {"lm-eval": import_lm_eval}
console = Console(highlight=False)


def import_runs(kind: str, sources: Sequence[str], out: Path) -> int:
    """Import, say what a reader must know, compare; the exit code is the verdict's, 0 for a single arm."""
    if kind not in FORMATS:
        raise UnknownName("format", kind, FORMATS)
    folder, notes = FORMATS[kind](sources, out)
    for note in notes:
        console.print(f"note: {plain(note)}", markup=False)
    console.print(f"imported as {folder.path.name}", markup=False)
    code = runs.compare(str(folder.path), out)
    return code if len(folder.read_run().arms) > 1 else 0
