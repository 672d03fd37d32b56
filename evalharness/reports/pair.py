"""Two runs arm by arm, for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from evalharness.compare.across import RunPair
from evalharness.records import Comparison
from evalharness.reports.terminal import STYLES
from evalharness.reports.terminal import render as render_arm
from evalharness.reports.words import plain


def render(found: RunPair) -> RenderableType:
    """The runs' names, a table for every arm, what was left out or differs, and one line per arm to end with."""
    heads = [Text(f"first:  {plain(found.first)}"), Text(f"second: {plain(found.second)}")]
    tables = [part for arm, one in found.arms.items() for part in (Text(f"\narm {plain(arm)}"), render_arm(one))]
    notes = [Text(plain(note), style="dim") for note in found.notes]
    return Group(*heads, *tables, Text(), *notes, *(_line(arm, one) for arm, one in found.arms.items()))


def _line(arm: str, found: Comparison) -> Text:
    outcome = found.verdict.outcome
    line = Text(f"{plain(arm):<12} ")
    line.append(outcome.value, style=STYLES[outcome])
    return line.append(" no regression" if outcome.exit_code == 0 else "")
