"""The emulated engine two processes away, as vLLM's engine core is: harness -> engine child -> worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evalharness.engines.base import Completion, Request
from evalharness.engines.emulated.engine import Emulator
from evalharness.engines.process import SupervisedEngine
from evalharness.errors import EngineError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec

ROOT = Path(__file__).parents[2]
FORK = get_context("fork")


class InWorker:
    """An engine whose every call is served by a worker process."""

    def __init__(self) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.worker = FORK.Process(target=work, args=(theirs, self.pipe))
        self.worker.start()
        theirs.close()

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            self.pipe.send((method, arguments))
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise EngineError("The worker ended.", "Resume the run.") from error

    def open(self, spec: RunSpec) -> None:
        self.call("open", spec)

    def use(self, arm: ArmSpec) -> ArmEvidence:
        found: ArmEvidence = self.call("use", arm)
        return found

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        answer = self.call("generate", list(requests))
        while answer is not None:
            yield answer
            answer = self.call("next")

    def evidence(self) -> ArmEvidence:
        found: ArmEvidence = self.call("evidence")
        return found

    def close(self) -> None:
        self.pipe.close()
        self.worker.join(5)


def work(pipe: Connection, other_end: Connection) -> None:
    """Serve an emulated engine until the other end is closed."""
    other_end.close()
    engine = Emulator()
    answers: Iterator[Completion] = iter(())
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        if method == "generate":
            answers = iter(engine.generate(*arguments))
        result = next(answers, None) if method in {"generate", "next"} else getattr(engine, method)(*arguments)
        pipe.send(result)


def create() -> SupervisedEngine:
    return SupervisedEngine("tests.faults.worker_engine:InWorker", lambda _: {"PYTHONPATH": str(ROOT)})
