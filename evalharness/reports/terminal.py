"""The table a run ends with, for a terminal."""

from __future__ import annotations

from rich.console import RenderableType

from evalharness.records import Comparison


def render(comparison: Comparison) -> RenderableType:
    """Header line, one row per task, the published figures, and the verdict in words."""
    raise NotImplementedError
