"""The emulated engine: a numpy miniature of Model Runner V2 and FlashMLA that runs DeepSeek-V3-layout checkpoints."""

from __future__ import annotations

from evalharness.engines.base import Engine


def create() -> Engine:
    """A new, unopened engine."""
    from evalharness.engines.emulated.engine import Emulator

    return Emulator()
