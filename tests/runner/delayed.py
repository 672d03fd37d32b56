"""An engine in a child process that takes its time, and notes when it did what."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from evalharness.engines.base import Completion, Request
from evalharness.engines.process import SupervisedEngine
from evalharness.errors import EngineError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec

ROOT = Path(__file__).parents[2]
EVENTS = "DELAYED_EVENTS"  # file of "<monotonic seconds> <what>" lines
LOAD_S, CAPTURE_S = 0.8, 0.5


def note(what: str) -> None:
    """Add a line; the clock is the same in every process."""
    with Path(os.environ[EVENTS]).open("a", encoding="utf-8") as file:
        file.write(f"{time.monotonic()} {what}\n")


def noted(path: Path) -> dict[str, float]:
    """When each thing happened (the last time)."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {what: float(when) for when, _, what in (line.partition(" ") for line in lines)}


class Delayed:
    """Loads and captures slowly, answers at once."""

    def __init__(self) -> None:
        self.arm, self.answered = "", 0

    def open(self, spec: RunSpec) -> None:
        note(f"process {os.getpid()}")
        print(f"loading for {spec.name}", flush=True)
        note("load begins")
        time.sleep(LOAD_S)
        note("load ends")

    def use(self, arm: ArmSpec) -> ArmEvidence:
        note(f"{arm.name} comes up")
        print(f"capturing {arm.name}", flush=True)
        time.sleep(CAPTURE_S)
        self.arm, self.answered = arm.name, 0
        note(f"{arm.name} is up")
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for request in requests:
            self.answered += 1
            # A long answer: what is unread here is more than a pipe holds.
            yield Completion(request.id, "no idea " * 2000, (1, 2), "stop", 3, 2, 0.01)
        note(f"{self.arm} answered")

    def evidence(self) -> ArmEvidence:
        mode = {"capture_path": self.arm}
        return ArmEvidence(self.arm, "delayed", "1", mode, mode, full_replays=self.answered)

    def close(self) -> None:
        note("closed")


class CannotLoad(Delayed):
    def open(self, spec: RunSpec) -> None:
        super().open(spec)
        raise EngineError("The weights are torn.", "Fetch them again.")


def create() -> SupervisedEngine:
    return _supervised("Delayed")


def create_broken() -> SupervisedEngine:
    return _supervised("CannotLoad")


def _supervised(name: str) -> SupervisedEngine:
    variables = {"PYTHONPATH": str(ROOT), EVENTS: os.environ[EVENTS]}
    return SupervisedEngine(f"tests.runner.delayed:{name}", lambda _: variables, start_timeout_s=30)
