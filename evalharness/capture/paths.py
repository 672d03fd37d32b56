"""The capture paths: how the captured call of a FULL graph comes by its forward function and attention state.

The only place that knows a path by its name. An engine asks `capture_path` once and then calls the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Forward = TypeVar("Forward")

NO_PATH = "none"
MIXED_PATHS = "mixed"


@dataclass(frozen=True, slots=True)
class CapturePath:
    """One way of capturing a descriptor: warm-up call first, then the call that is recorded.

    `shares_state` - True: the recorded call runs on what the warm-up ran on; False: on a fresh build;
    None: on whatever the engine's own capture loop gives it.
    """

    name: str
    shares_state: bool | None

    def for_capture(self, warmed: Forward, build: Callable[[], Forward]) -> Forward:
        """What the recorded call runs: `warmed` itself, or a new one from `build` (called outside the graph).

        Raises:
            ValueError: the path leaves the choice to the engine; `resolved` tells which path that is.
        """
        if self.shares_state is None:
            raise ValueError(f"capture path {self.name!r} has to be resolved first")
        return warmed if self.shares_state else build()

    def resolved(self, engine_shares: bool) -> CapturePath:
        """The path that is really taken by an engine whose own loop shares its state, or does not."""
        if self.shares_state is not None:
            return self
        return next(path for path in CAPTURE_PATHS.values() if path.shares_state is engine_shares)


CAPTURE_PATHS: dict[str, CapturePath] = {
    "stock": CapturePath("stock", shares_state=True),
    "patched": CapturePath("patched", shares_state=False),
    "native": CapturePath("native", shares_state=None),
}


def capture_path(capture: str) -> CapturePath | None:
    """The path of an arm's `capture` value, of `stock:tile_sched_c4a` too; None for `eager`, which captures nothing."""
    return CAPTURE_PATHS.get(capture.partition(":")[0])


def observed_path(shared: Iterable[bool | None]) -> str:
    """Name of the path that the descriptors' `shared` flags show: `none`, `stock`, `patched` or `mixed`."""
    seen = set(shared)
    if not seen:
        return NO_PATH
    names = [
        path.name for path in CAPTURE_PATHS.values() if path.shares_state is not None and seen == {path.shares_state}
    ]
    return names[0] if names else MIXED_PATHS
