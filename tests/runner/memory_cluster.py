"""A cluster in this process: real workers, taken one line at a time in turn, that die when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from evalharness.engines.base import Completion, Request
from evalharness.records import ArmEvidence
from evalharness.runner.executors.worker import Brief, Lost, Order, Report, Worker, heard
from evalharness.spec import ArmSpec, RunSpec
from tests.synthetic import proof


class Echo:
    """An engine whose answer is made of the request alone, as a sound engine's is."""

    def __init__(self) -> None:
        self.arm, self.steps = "", 0

    def open(self, spec: RunSpec) -> None:
        pass

    def use(self, arm: ArmSpec) -> ArmEvidence:
        self.arm, self.steps = arm.name, 0
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for request in requests:
            self.steps += 1
            yield answer(request)

    def evidence(self) -> ArmEvidence:
        return replace(proof(self.arm), full_replays=self.steps, eager_steps=0)

    def close(self) -> None:
        pass


def create() -> Echo:
    """The entry in ENGINES."""
    return Echo()


def answer(request: Request) -> Completion:
    """What every sound engine says to `request`."""
    text = f"{request.prompt} {request.seed}"
    return Completion(request.id, text, tuple(text.encode()), "stop", 3, len(text), 0.5)


class MemoryCluster:
    """`deaths` says after how many lines of its own a replica is lost; `orders` counts what each was given."""

    def __init__(self, spec: RunSpec, deaths: Mapping[str, int] | None = None, patience_s: float | None = None) -> None:
        self.patience_s = patience_s
        self.deaths = dict(deaths or {})
        self.orders: dict[str, list[Order]] = {}
        self.left: dict[str, tuple[ArmEvidence, list[Completion]]] = {}
        self.brief = Brief.of(spec)
        self._workers: dict[str, Worker] = {}
        self._waiting: dict[str, deque[Order]] = {}
        self._lines: dict[str, Iterator[str]] = {}

    def hire(self, name: str) -> None:
        self._workers[name] = Worker(self.brief)
        self._waiting[name], self._lines[name], self.orders[name] = deque(), iter(()), []

    def send(self, name: str, order: Order) -> None:
        self._waiting[name].append(order)
        self.orders[name].append(order)

    def earlier(self, _: ArmSpec, wanted: Mapping[str, Request]) -> Iterator[tuple[str, ArmEvidence | Completion]]:
        for name, told in self.left.items():
            yield name, told[0]
            yield from ((name, completion) for completion in told[1] if completion.request_id in wanted)

    def recall(self, name: str) -> None:
        self._workers[name].recall()

    def reports(self, _: float) -> Iterator[tuple[str, Report]]:
        for name in list(self._workers):
            if self.deaths.get(name, 1) <= 0:
                self.dismiss(name)
                yield name, Lost("its node was switched off")
            elif (line := self._next(name)) is not None:
                self.deaths[name] = self.deaths.get(name, 10**9) - 1
                yield name, heard(line)

    def dismiss(self, name: str) -> None:
        self._workers.pop(name, None)

    def close(self) -> None:
        self._workers.clear()

    def _next(self, name: str) -> str | None:
        line = next(self._lines[name], None)
        if line is None and self._waiting[name]:
            self._lines[name] = self._workers[name].serve(self._waiting[name].popleft())
            line = next(self._lines[name])
        return line
