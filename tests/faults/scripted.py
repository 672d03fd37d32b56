"""An engine in this process whose behaviour a test sets, and small runs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.engines import base
from evalharness.engines.base import Completion, Request
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec, parse_spec

Answer = Callable[[str, Request], Completion]


def right(_arm: str, request: Request) -> Completion:
    """Any answer, always the same one to the same prompt."""
    return Completion(request.id, f"#### {len(request.prompt)}", (1, 2, 3), "stop", 9, 3, 0.1)


class Scripted:
    """Answers by `answer`; `on_open` and `on_use` may raise. Counts what it was asked."""

    answer: Answer = staticmethod(right)
    on_open: Callable[[], None] = staticmethod(lambda: None)
    on_use: Callable[[str], None] = staticmethod(lambda _: None)
    opened = 0
    asked: list[tuple[str, str]] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self) -> None:
        self.arm = ""
        self.count = 0

    def open(self, _: RunSpec) -> None:
        type(self).opened += 1
        type(self).on_open()

    def use(self, arm: ArmSpec) -> ArmEvidence:
        self.arm = arm.name
        type(self).on_use(arm.name)
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for request in requests:
            self.asked.append((self.arm, request.id))
            self.count += 1
            yield type(self).answer(self.arm, request)

    def evidence(self) -> ArmEvidence:
        return ArmEvidence(self.arm, "scripted", "1", {}, {}, full_replays=self.count)

    def close(self) -> None:
        """Nothing to stop."""


def create() -> Scripted:
    return Scripted()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    """Puts Scripted in place of the emulated engine; a test sets its attributes."""
    monkeypatch.setitem(base.ENGINES, "emulated", ("tests.faults.scripted", "scripted"))
    for name, value in {"answer": staticmethod(right), "opened": 0, "asked": []}.items():
        monkeypatch.setattr(Scripted, name, value)
    monkeypatch.setattr(Scripted, "on_open", staticmethod(lambda: None))
    monkeypatch.setattr(Scripted, "on_use", staticmethod(lambda _: None))
    return Scripted


def small_spec(*arms: str, limit: int = 6, **changes: Any) -> RunSpec:
    """A run of a few answers; `model` is any folder."""
    raw: dict[str, Any] = {
        "name": "small",
        "engine": {"kind": "emulated", "model": str(Path(__file__).parent)},
        "arms": list(arms or ("eager", "stock", "patched")),
        "tasks": [{"name": "gsm8k_canary", "limit": limit}],
        "policy": "endpoint",
    }
    return parse_spec({**raw, **changes})
