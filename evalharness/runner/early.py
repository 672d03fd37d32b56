"""Ending an arm's task as soon as its answers decide it; the rule itself is stats.sequential's."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evalharness.arms import is_further_run
from evalharness.compare import reference_arm
from evalharness.compare.arms import PRIMARY
from evalharness.errors import SpecError
from evalharness.policy import Policy, load_policy
from evalharness.records import ArmSummary, Cause, Run, Sample
from evalharness.scoring.tasks import Item, PreparedTask
from evalharness.spec import RunSpec
from evalharness.stats.sequential import Progress, should_stop
from evalharness.store import RunFolder

LOOKS: Final = 50  # the rule is asked again when the beginning has grown by one part in so many
Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Stop:
    """An arm's task ended after its first `documents`, for `reason`; `saved` answers were never given."""

    documents: int
    saved: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """The policy by which arms may end early, at `alpha` for each of a run's tasks."""

    policy: Policy
    alpha: float

    @classmethod
    def of(cls, spec: RunSpec) -> Rule | None:
        """The rule of a run, None where nothing is to end early.

        The level is divided among the tasks, so that what ended an arm still stands after Holm's adjustment.

        Raises:
            SpecError: the run's policy wants every question answered.
        """
        if not spec.stop_early:
            return None
        policy = load_policy(spec.policy)
        if not policy.allow_early_stop:
            raise SpecError(
                f"Policy {policy.name} is for sign-off and does not allow an arm to stop early.",
                "Leave out --stop-early, or take a policy with allow_early_stop, such as --set policy=quick.",
            )
        return cls(policy, policy.alpha / len(spec.tasks))

    def watch(self, task: PreparedTask, arm: str, arms: Sequence[ArmSummary], folder: RunFolder) -> Watch | None:
        """What to tell the answers of `arm` to; None for an arm that has to run whole: the reference, a second run of
        an arm (it measures noise), and any arm where the policy has no margin for so few documents."""
        reference = reference_arm(arms)
        if reference is None or arm == reference or is_further_run(arm):
            return None
        documents = len({item.doc_id for item in task.items})
        margin, _ = self.policy.task(task.name).margin_for(documents, max(1, len(task.items) // max(documents, 1)))
        if margin is None:
            return None
        watch = Watch(task.items, folder.read_samples(task.name, reference), margin, self.alpha)
        for sample in folder.read_samples(task.name, arm):
            watch.hear(sample)
        return watch


class Watch:
    """Follows the answers of one arm to one task, document by document in the planned order.

    Short answers finish first and are not like the others, so a document counts only when all before it are
    answered, in the reference arm too. One that infrastructure lost counts as answered and tells nothing.
    """

    def __init__(self, items: Sequence[Item], reference: Iterable[Sample], margin: float, alpha: float) -> None:
        self._margin, self._alpha = margin, alpha
        self._questions: dict[int, list[Key]] = defaultdict(list)
        for item in items:
            self._questions[item.doc_id].append((item.doc_hash, item.doc_id, item.repeat))
        self._waiting = deque(sorted(self._questions))
        self._reference = {sample.key: _score(sample) for sample in reference}
        self._answers: dict[Key, float | None] = {}
        self._differences: list[float] = []
        self._looked_at = 0

    def hear(self, sample: Sample) -> Stop | None:
        """Take an answer in; says so when it decides the task and saves any."""
        self._answers[sample.key] = _score(sample)
        while self._waiting and self._complete(self._waiting[0]):
            self._differences += self._difference(self._waiting.popleft())
        heard = len(self._questions) - len(self._waiting)
        if heard - self._looked_at <= heard // LOOKS:
            return None
        self._looked_at = heard
        return self._decide(heard)

    def _decide(self, documents: int) -> Stop | None:
        progress = Progress(np.array(self._differences), len(self._questions), self._margin, self._alpha)
        decision = should_stop(progress)
        saved = sum(map(len, self._questions.values())) - len(self._answers)
        return Stop(documents, saved, decision.reason) if decision.stop and saved else None

    def _complete(self, document: int) -> bool:
        return all(key in self._answers and key in self._reference for key in self._questions[document])

    def _difference(self, document: int) -> list[float]:
        """Mean score of the document less the reference's, over the repeats both have; none where they have none."""
        pairs = [(self._answers[key], self._reference[key]) for key in self._questions[document]]
        found = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
        return [float(np.mean(found))] if found else []


def stopped_after(run: Run, task: str, arm: str) -> int | None:
    """Documents after which `arm` ended `task`, if it ended early."""
    stop = run.provenance.get("early_stop", {}).get(task, {}).get(arm)
    return None if stop is None else int(stop["documents"])


def with_stop(provenance: Mapping[str, object], task: str, arm: str, stop: Stop) -> dict[str, object]:
    """`provenance` with the stop noted where `compare` looks for it."""
    stops = provenance.get("early_stop", {})
    assert isinstance(stops, Mapping)  # noqa: S101 - written by this function alone
    entry = {"documents": stop.documents, "saved": stop.saved}
    return {**provenance, "early_stop": {**stops, task: {**stops.get(task, {}), arm: entry}}}


def beginning(items: Sequence[Item], documents: int | None) -> Sequence[Item]:
    """The items of the first `documents` of the plan; all of them for None."""
    if documents is None:
        return items
    first = set(sorted({item.doc_id for item in items})[:documents])
    return [item for item in items if item.doc_id in first]


def _score(sample: Sample) -> float | None:
    return None if sample.cause is Cause.ERROR else sample.scores.get(PRIMARY)
