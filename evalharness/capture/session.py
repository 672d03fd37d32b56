"""What stands between vLLM's capture loop and its factory of forward functions: the capture paths themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evalharness.capture.graph_nodes import kernels_being_captured, plans
from evalharness.capture.observe import Slot, changed, describe, snapshot
from evalharness.capture.paths import CAPTURE_PATHS, CapturePath, capture_path
from evalharness.records import DescriptorEvidence

Forward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """A capture path; with `only`, what it shares is confined to the attribute of that name."""

    path: CapturePath
    only: str = ""

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Read `stock`, `patched`, `native` or `stock:ATTRIBUTE`; raises ValueError."""
        name, _, only = text.partition(":")
        path = capture_path(name)
        if path is None or (only and not path.shares_state):
            raise ValueError(f"capture path {text!r}: use one of {', '.join(CAPTURE_PATHS)} or stock:ATTRIBUTE")
        return cls(path, only)

    def __str__(self) -> str:
        return f"{self.path.name}:{self.only}" if self.only else self.path.name

    @property
    def shares_all(self) -> bool:
        """Whether warm-up and capture are given one state."""
        return self.path.shares_state is True and not self.only

    @property
    def refreshes(self) -> bool:
        """Whether the captured call gets a state of its own, also where the release would not build one."""
        return self.path.shares_state is False or bool(self.only)


class Session:
    """One CudaGraphManager.capture call: hands vLLM forward functions whose state the path decides.

    `rows` is the evidence of every descriptor captured; `shared_states` what stock's graphs rely on, yet
    nothing in vLLM keeps alive.
    """

    def __init__(self, factory: Forward, setting: Setting) -> None:
        self._factory, self._setting = factory, setting
        self._shot: _Shot | None = None
        self._captured: dict[Any, Any] = {}
        self.rows: list[DescriptorEvidence] = []
        self.shared_states: list[object] = []

    def create(self, desc: Any, *args: Any, **kwargs: Any) -> Any:
        """What vLLM calls instead of its own factory; returns what that one would return."""
        # Factories for several micro-batches (0.30+) park threads and serve one call: not ours to repeat.
        if desc.cg_mode.name != "FULL" or getattr(desc, "num_ubatches", 1) > 1:
            return self._factory(desc, *args, **kwargs)
        build = functools.partial(self._factory, desc, *args, **kwargs)
        if self._shot is not None and self._shot.desc == desc:
            return self._shot.again(build)
        self._close()
        # A release that says warmup=... builds twice by itself; an older one may not.
        self._shot = _Shot(desc, self._setting, build, ahead=self._setting.refreshes and "warmup" not in kwargs)
        return self._shot.handed_out()

    def finish(self, result: Any) -> Any:
        """End the capture that returned `result`. 0.21 and 0.22 return the state of each descriptor: the
        captured call's is put in where this session built it."""
        self._close()
        if isinstance(result, dict):
            result.update({desc: state for desc, state in self._captured.items() if desc in result})
        return result

    def _close(self) -> None:
        # Dropped at once, as vLLM itself does: a state kept longer would change the graph pool's size.
        shot, self._shot = self._shot, None
        if shot is None:
            return
        self.rows.append(shot.evidence())
        if self._setting.path.shares_state:
            self.shared_states.append(shot.results[0])
        if shot.ahead and isinstance(shot.results[-1], tuple):
            self._captured[shot.desc] = shot.results[-1][1]


class _Shot:
    """One descriptor on its way through warm-up and capture. `results` holds what the factory built: the
    warm-up's, and the captured call's where that is another. `ahead`: build the second as soon as the
    warm-up has returned, outside the graph."""

    def __init__(self, desc: Any, setting: Setting, build: Forward, *, ahead: bool) -> None:
        self.desc, self.setting, self.ahead = desc, setting, ahead
        self.results = [build()]
        self._build = build
        self._calls: list[tuple[object, dict[str, Slot], dict[str, Slot]]] = []
        self._kernels: tuple[str, ...] | None = None

    def handed_out(self) -> Any:
        """The current result with the forward function replaced by the observed one."""
        result = self.results[-1]
        return (self._forward, *result[1:]) if isinstance(result, tuple) else self._forward

    def again(self, build: Forward) -> Any:
        """The release asks a second time for the same descriptor."""
        if not self.setting.shares_all and len(self.results) == 1:
            self._refresh(build)
        return self.handed_out()

    def evidence(self) -> DescriptorEvidence:
        """What the two calls did to the state."""
        (root, before, after), *captured = self._calls
        moved = changed(before, after)
        return DescriptorEvidence(
            descriptor=f"FULL/{self.desc.num_tokens}",
            num_tokens=self.desc.num_tokens,
            shared=_shared(root, after, moved, captured[0]) if captured and root is not None else None,
            changed=tuple(describe(path, after[path]) for path in moved),
            plan_recorded=plans(self._kernels) if self._kernels and _planned(after) else None,
            factory_calls=len(self.results),
        )

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        function, metadata = _opened(self.results[-1])
        before = snapshot(metadata)
        out = function(*args, **kwargs)
        self._calls.append((metadata, before, snapshot(metadata)))
        if len(self._calls) > 1:
            self._kernels = kernels_being_captured()
        elif self.ahead:
            self._refresh(self._build)
        return out

    def _refresh(self, build: Forward) -> None:
        self.results.append(build())
        if self.setting.only:
            _transplant(_opened(self.results[0])[1], _opened(self.results[-1])[1], self.setting.only)


def _opened(result: Any) -> tuple[Forward, Any]:
    """(forward function, attention metadata) of what a factory returned.

    0.21 to 0.25 return (function, state); every release has the metadata in the function's closure.
    """
    function, *state = result if isinstance(result, tuple) else (result,)
    if state and state[0] is not None:
        return function, getattr(state[0], "attn_metadata", state[0])
    names, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    held = {}
    for name, cell in zip(names.co_freevars if names else (), cells, strict=False):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # a free variable that is not bound yet
            continue
    if "attn_metadata" in held:
        return function, held["attn_metadata"]
    return function, next((v.attn_metadata for v in held.values() if hasattr(v, "attn_metadata")), None)


def _shared(
    root: object, warm: dict[str, Slot], moved: tuple[str, ...], captured: tuple[object, dict[str, Slot], object]
) -> bool:
    """Whether the captured call began with the warm-up's state, or with a value that the warm-up had left."""
    other, before, _ = captured
    return root is other or any(path in before and warm[path].mark == before[path].mark for path in moved)


def _planned(slots: dict[str, Slot]) -> bool:
    return any(slot.key == "tile_scheduler_metadata" for slot in slots.values())


def _transplant(old: object, new: object, name: str) -> None:
    """Give `new` the warm-up's value of every attribute called `name`."""
    donors = snapshot(old)
    for path, slot in snapshot(new).items():
        if slot.key == name and path in donors and not isinstance(slot.owner, dict | list | tuple):
            object.__setattr__(slot.owner, name, donors[path].value)
