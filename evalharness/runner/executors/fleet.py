"""Many replicas as one engine: questions are dealt out to them, and what a lost one had left goes to another."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from evalharness.engines.base import Completion, Request
from evalharness.errors import EngineError, EvalHarnessError
from evalharness.records import ArmEvidence
from evalharness.runner.executors.shards import Shard, split
from evalharness.runner.executors.worker import Ended, Lost, Order, Report, Started
from evalharness.runner.proof import joined
from evalharness.spec import ArmSpec, RunSpec

ATTEMPTS: Final = 3  # replicas that a shard may break before it is given up
REPLACEMENTS: Final = 3  # replicas hired anew, for each that the fleet began with
POLL_S: Final = 1.0
RECALL_S: Final = 30.0
UNCOUNTED: Final = "the steps behind its last answers are not counted"
RESUME: Final = "Mend the cause and resume the run; finished answers are kept."


class Cluster(Protocol):
    """Where the replicas of a fleet live, and how to talk to them; each goes by a name that the fleet gives it.

    `patience_s` is how long it may take until a replica has a place; None leaves it to a queue.
    """

    patience_s: float | None

    def hire(self, name: str) -> None:
        """Ask for a replica; `Started` is its first report, whenever it has a place."""

    def send(self, name: str, order: Order) -> None:
        """Give the replica an order; a replica that has no place yet finds it when it starts."""

    def earlier(self, arm: ArmSpec, wanted: Mapping[str, Request]) -> Iterator[tuple[str, ArmEvidence | Completion]]:
        """What replicas of an earlier sitting answered to requests in `wanted`, by id, after the evidence of each."""

    def recall(self, name: str) -> None:
        """Have it end its order after the next answer."""

    def reports(self, timeout_s: float) -> Iterator[tuple[str, Report]]:
        """What came in since the last call, waiting at most so long for the first; `Lost` is a replica's last."""

    def dismiss(self, name: str) -> None:
        """Take its place away, whatever it does."""

    def close(self) -> None:
        """Dismiss all of them, letting their engines stop."""


@dataclass(slots=True)
class Member:
    """A replica of the fleet. `place` is empty until it started, `sittings` counts its starts (a job put back into
    the queue starts again); `ready` means that its engine was opened."""

    name: str
    place: str = ""
    sittings: int = 0
    ready: bool = False
    busy: bool = False
    shard: Shard | None = None

    @property
    def label(self) -> str:
        """As evidence and errors name it."""
        again = f", start {self.sittings}" if self.sittings > 1 else ""
        return f"{self.name} on {self.place}{again}" if self.place else self.name


class Fleet:
    """The Engine that `size` replicas on `cluster` are to the runner."""

    def __init__(self, cluster: Cluster, size: int) -> None:
        self._cluster, self._size = cluster, size
        self._members: dict[str, Member] = {}
        self._hired = 0
        self._arm: ArmSpec | None = None
        self._proofs: dict[str, ArmEvidence] = {}
        self._notes: list[str] = []
        self._todo: deque[Shard] = deque()
        self._given_up: list[Shard] = []
        self._hired_at = 0.0

    def open(self, spec: RunSpec) -> None:  # noqa: ARG002 - the cluster was made for it
        """Hire the replicas and wait for the first to have loaded; raises EngineError when none does."""
        for _ in range(self._size):
            self._hire()
        while not any(member.ready for member in self._members.values()):
            list(self._listen())

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Bring `arm` up on every replica that is ready; returns with the first proof, the others follow.

        Raises:
            EvidenceError: a replica fell back, or two do not run the arm alike.
            EngineError: no replica is left.
        """
        if self._arm is not None:  # what was lost while loading is told with the first arm
            self._notes = []
        self._arm, self._proofs = arm, {}
        while not self._proofs:
            for member in self._idle():
                self._send(member, Order(arm))
            list(self._listen())
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        """Answer `requests`, each once, in any order; closing it recalls what is under way.

        Raises:
            EvidenceError: a replica that came later does not run the arm as the others do.
            EngineError: no replica is left, or a shard broke ATTEMPTS of them; the other shards are finished first.
        """
        wanted = {request.id: request for request in requests}
        yield from self._found(wanted)
        self._given_up, self._todo = [], deque(split(list(wanted.values()), self._size))
        try:
            while self._todo or self._at_work():
                self._deal()
                yield from self._listen()
        finally:
            self._recall()
        if self._given_up:
            raise self._failure()

    def evidence(self) -> ArmEvidence:
        """Evidence of every replica that ran the arm in use, joined; raises EvidenceError where they differ."""
        together = joined(self._proofs)
        return replace(together, notes=(*together.notes, *self._notes))

    def close(self) -> None:
        """Stop every replica."""
        self._members.clear()
        self._cluster.close()

    def _found(self, wanted: dict[str, Request]) -> Iterator[Completion]:
        """Answers that need not be asked for any more; takes them out of `wanted`."""
        if self._arm is None:
            raise EngineError("No arm is in use.", "Call use(arm) first.")
        for name, report in list(self._cluster.earlier(self._arm, wanted)):
            if isinstance(report, ArmEvidence):
                self._proofs[name] = report
            elif wanted.pop(report.request_id, None) is not None:
                yield report

    def _hire(self) -> None:
        self._hired += 1
        member = Member(f"replica {self._hired}")
        self._hired_at = time.monotonic()
        self._cluster.hire(member.name)
        self._members[member.name] = member
        self._send(member, Order())

    def _send(self, member: Member, order: Order) -> None:
        member.busy = True
        self._cluster.send(member.name, order)

    def _idle(self) -> list[Member]:
        return [member for member in self._members.values() if member.ready and not member.busy]

    def _at_work(self) -> list[Member]:
        return [member for member in self._members.values() if member.shard]

    def _deal(self) -> None:
        for member in self._idle():
            if self._todo:
                member.shard = self._todo.popleft()
                self._send(member, Order(self._arm, tuple(member.shard.missing.values())))

    def _listen(self) -> Iterator[Completion]:
        """Wait a moment for reports and act on all of them; the answers among them, then the first error."""
        self._refuse_to_wait()
        found, failures = [], []
        for name, report in self._cluster.reports(POLL_S):
            member = self._members.get(name)
            try:
                if member is not None and (completion := self._hear(member, report)):
                    found.append(completion)
            except EvalHarnessError as error:
                failures.append(error)
        yield from found
        if failures:
            raise failures[0]

    def _hear(self, member: Member, report: Report) -> Completion | None:
        match report:
            case Started():
                self._started(member, report)
            case ArmEvidence():
                self._prove(member, report)
            case Completion():
                asked = member.shard.missing.pop(report.request_id, None) if member.shard else None
                return report if asked else None
            case Ended():
                self._ended(member)
            case EngineError():
                self._lose(member, str(report))
            case EvalHarnessError():
                raise report
            case Lost():
                self._lose(member, report.reason)
        return None

    def _started(self, member: Member, report: Started) -> None:
        if member.label in self._proofs and member.shard is not None:
            self._notes.append(f"{member.label} was put back into the queue; {UNCOUNTED}")
        member.place, member.sittings = report.place, member.sittings + 1

    def _prove(self, member: Member, evidence: ArmEvidence) -> None:
        """Keep a replica's newest evidence of the arm in use; raises EvidenceError if it is not like the others'."""
        if self._arm is not None and evidence.arm == self._arm.name:
            self._proofs[member.label] = evidence
            joined(self._proofs)

    def _ended(self, member: Member) -> None:
        shard, member.shard = member.shard, None
        member.busy, member.ready = False, True
        if shard is not None and shard.missing:
            self._pass_on(shard, f"{member.label} left {len(shard.missing)} requests without an answer.")

    def _lose(self, member: Member, reason: str) -> None:
        """Do without a replica: its place is given away, and what it had not answered goes to another."""
        said = f"{member.label}: {reason}"
        del self._members[member.name]
        self._cluster.dismiss(member.name)
        self._notes.append(f"{member.label} was lost; {UNCOUNTED if member.label in self._proofs else reason}")
        if member.shard is not None and member.shard.missing:
            self._pass_on(member.shard, said)
        if member.ready and self._hired < self._size * (1 + REPLACEMENTS):
            self._replace()
        if not self._members:
            raise EngineError(f"No replica is left. {said}", RESUME)

    def _replace(self) -> None:
        """Hire one more; where that is refused, the others go on without."""
        try:
            self._hire()
        except EngineError as error:
            self._notes.append(f"nothing took its place; {error}")

    def _pass_on(self, shard: Shard, reason: str) -> None:
        shard.lost.append(reason)
        (self._todo if len(shard.lost) < ATTEMPTS else self._given_up).append(shard)

    def _recall(self) -> None:
        """Give up what is under way, if anything is; a replica that does not end its order is dismissed."""
        self._todo.clear()
        for member in self._at_work():
            self._cluster.recall(member.name)
            member.shard = Shard({})
        deadline = time.monotonic() + RECALL_S
        while self._at_work() and time.monotonic() < deadline:
            with suppress(EvalHarnessError):  # what is given up cannot fail
                list(self._listen())
        for member in self._at_work():
            del self._members[member.name]
            self._cluster.dismiss(member.name)

    def _refuse_to_wait(self) -> None:
        patience, waited = self._cluster.patience_s, time.monotonic() - self._hired_at
        if patience is None or waited < patience or any(member.place for member in self._members.values()):
            return
        raise EngineError(f"In {waited:.0f} s there was room for no replica.", f"Free some nodes. {RESUME}")

    def _failure(self) -> EngineError:
        missing = sum(len(shard.missing) for shard in self._given_up)
        return EngineError(
            f"{missing} questions broke {ATTEMPTS} replicas one after another. {self._given_up[0].lost[-1]}", RESUME
        )
