"""An engine that gives every question the answer a test wants, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from evalharness.engines.base import Completion, Request
from evalharness.records import ArmEvidence
from evalharness.scoring.tasks import Item, prepare
from evalharness.spec import ArmSpec, RunSpec
from tests.synthetic import proof

Reply = Callable[[str, Item], str | None]


def sound_but_stock(arm: str, item: Item) -> str | None:
    """The right answer in every arm but stock."""
    return "no idea" if arm.startswith("stock") else f"so \\boxed{{{item.target}}}\n#### {item.target}"


class Scripted:
    """Answers `reply(arm, item)`; None is a request lost to infrastructure. `asked` lists (arm, request id) in order,
    `given_up` the arms of which a call was closed before its end, `calls` how many requests each call brought."""

    def __init__(self, reply: Reply = sound_but_stock) -> None:
        self.reply = reply
        self.arm = ""
        self.items: dict[str, Item] = {}
        self.asked: list[tuple[str, str]] = []
        self.calls: list[tuple[str, int]] = []
        self.given_up: list[str] = []
        self.busy = False

    def open(self, spec: RunSpec) -> None:
        self.items = {item.request().id: item for task in prepare(spec) for item in task.items}

    def use(self, arm: ArmSpec) -> ArmEvidence:
        assert not self.busy, "the last arm's requests are still under way"
        self.arm = arm.name
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        assert not self.busy
        self.busy, ended, taken = True, False, list(requests)
        self.calls.append((self.arm, len(taken)))
        try:
            for request in taken:
                self.asked.append((self.arm, request.id))
                yield self._completion(request)
            ended = True
        finally:
            self.busy = False
            self.given_up += [] if ended else [self.arm]

    def evidence(self) -> ArmEvidence:
        return proof(self.arm)

    def close(self) -> None:
        pass

    def _completion(self, request: Request) -> Completion:
        text = self.reply(self.arm, self.items[request.id])
        if text is None:
            return Completion(request.id, "", (), "error", 0, 0, 0.0, error="connection reset")
        return Completion(request.id, text, tuple(text.encode()), "stop", 9, len(text), 0.01)
