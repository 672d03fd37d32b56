"""Two runs arm by arm: does each arm of the second hold what the same arm of the first did?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from evalharness.answers import as_table
from evalharness.compare import Samples, judge
from evalharness.compare.pairing import first_documents
from evalharness.compare.task import EarlyStop, TaskArms, arrange, early_stops
from evalharness.errors import PairingError
from evalharness.gate import Context, worst
from evalharness.policy import Policy
from evalharness.records import ArmEvidence, ArmSummary, Comparison, Outcome, Run
from evalharness.table import KeyArray, SampleTable

FIRST: Final = "first"
SECOND: Final = "second"
Tables = Mapping[str, SampleTable]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs, as `compare` takes it."""

    run: Run
    samples: Samples
    evidence: Mapping[str, ArmEvidence]


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs compared. `arms` maps each arm that both have to its comparison, whose arms are `first` (the reference)
    and `second`; `notes` say what was left out and what else differs between the runs."""

    first: str
    second: str
    arms: Mapping[str, Comparison]
    notes: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of the arms' verdicts."""
        return worst(found.verdict.outcome for found in self.arms.values())


def compare_runs(first: Side, second: Side, policy: Policy) -> RunPair:
    """Hold every arm of `second` against the arm of its name in `first`, on the questions both runs asked.

    Raises:
        PairingError: the runs share no arm, no task or no question, or asked one question in different words.
        RecordError: answers carry no primary score.
    """
    arms = _shared("arm", *([arm.name for arm in side.run.arms] for side in (first, second)))
    tasks = _shared("task", list(first.samples), list(second.samples))
    notes = [*_left_out(first, second), *_differences(first.run, second.run)]
    loaded: dict[str, list[TaskArms]] = {arm: [] for arm in arms}
    for task in tasks:
        pair = _TaskPair.of(task, first, second)
        notes += pair.notes()
        for arm in arms:
            loaded[arm].append(pair.arm(arm))
    found = {arm: _judge_arm(arm, loaded[arm], first, second, policy) for arm in arms}
    return RunPair(first.run.run_id, second.run.run_id, found, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Asked:
    """One run's side of a task; `question` and `doc_id` (n,) are all it asked, over all its arms."""

    run: Run
    tables: Tables
    question: KeyArray
    doc_id: np.ndarray

    @classmethod
    def of(cls, task: str, side: Side) -> _Asked:
        tables = {arm: table for arm, rows in side.samples[task].items() if len(table := as_table(rows))}
        questions = [table.question for table in tables.values()] or [np.zeros(0, np.uint64)]
        documents = [table.doc_id for table in tables.values()] or [np.zeros(0, np.int64)]
        question, first = np.unique(np.concatenate(questions), return_index=True)
        return cls(side.run, tables, question, np.concatenate(documents)[first])

    def due(self, stop: EarlyStop | None, common: KeyArray) -> KeyArray:
        """The questions of `common` that an arm had to answer, all of them unless it ended early."""
        if stop is None:
            return common
        return np.intersect1d(self.question[first_documents(self.doc_id, self.doc_id, stop.documents)], common)


@dataclass(frozen=True, slots=True)
class _TaskPair:
    """A task of two runs and the questions `common` to them."""

    task: str
    sides: Mapping[str, _Asked]
    common: KeyArray

    @classmethod
    def of(cls, task: str, first: Side, second: Side) -> _TaskPair:
        sides = {FIRST: _Asked.of(task, first), SECOND: _Asked.of(task, second)}
        one, two = (side.question for side in sides.values())
        common = np.intersect1d(one, two, assume_unique=True)
        if len(one) and len(two) and not len(common):
            raise PairingError(f"{task}: the runs share no question.", "Compare runs over the same documents.")
        return cls(task, sides, common)

    def notes(self) -> Iterator[str]:
        """How many questions only one run asked."""
        for label, side in self.sides.items():
            alone = len(side.question) - len(self.common)
            if alone and len(self.common):
                yield f"{self.task}: {alone} questions were asked only in the {label} run; they are left out."

    def arm(self, arm: str) -> TaskArms:
        """The answers of `arm` in both runs to the common questions, paired."""
        tables, asked, stopped, captures = {}, {}, {}, {}
        for label, side in self.sides.items():
            stop = early_stops(side.run, self.task).get(arm)
            if stop is not None:
                stopped[label] = EarlyStop(**stop)
            due = side.due(stopped.get(label), self.common)
            asked[label], captures[label] = len(due), _summary(side.run, arm).capture
            table = side.tables.get(arm)
            if table is not None and len(due):
                tables[label] = table.take(np.flatnonzero(np.isin(table.question, due, assume_unique=True)))
        return arrange(self.task, FIRST, tables, captures, asked, stopped)


def _judge_arm(arm: str, loaded: Sequence[TaskArms], first: Side, second: Side, policy: Policy) -> Comparison:
    sides = {FIRST: first, SECOND: second}
    summaries = tuple(replace(_summary(side.run, arm), name=label) for label, side in sides.items())
    proofs = {label: replace(side.evidence[arm], arm=label) for label, side in sides.items() if arm in side.evidence}
    stopped = any(task.stopped for task in loaded)
    run = replace(second.run, arms=summaries, spec=_spec(first.run, second.run))
    return judge(run, loaded, Context(summaries, FIRST, proofs, policy, early_stop=stopped, across_runs=True))


def _spec(first: Run, second: Run) -> dict[str, Any]:
    """The second run's spec without published figures, which are a run's own; it names both engines and models."""
    engines = [run.spec.get("engine", {}) for run in (first, second)]
    named = {key: " / ".join(dict.fromkeys(str(e.get(key, "unknown")) for e in engines)) for key in ("kind", "model")}
    return {"seed": second.spec.get("seed", 0), "engine": named}


def _summary(run: Run, arm: str) -> ArmSummary:
    return next(summary for summary in run.arms if summary.name == arm)


def _shared(kind: str, one: Sequence[str], two: Sequence[str]) -> list[str]:
    both = [name for name in one if name in two]
    if not both:
        raise PairingError(
            f"The runs share no {kind}: {', '.join(one)} against {', '.join(two)}.", f"Compare runs with one {kind}."
        )
    return both


def _left_out(first: Side, second: Side) -> Iterator[str]:
    for label, side, other in ((FIRST, first, second), (SECOND, second, first)):
        arms = sorted({arm.name for arm in side.run.arms} - {arm.name for arm in other.run.arms})
        for kind, alone in (("arm", arms), ("task", sorted(side.samples.keys() - other.samples.keys()))):
            if alone:
                yield f"Only the {label} run has {kind} {', '.join(alone)}: not compared."


def _differences(first: Run, second: Run) -> Iterator[str]:
    """What else than the build a difference may come from."""
    kinds = [str(run.spec.get("engine", {}).get("kind", "unknown")) for run in (first, second)]
    if kinds[0] != kinds[1]:
        yield f"The runs are of different engines, {kinds[0]} and {kinds[1]}: a difference may be the engine's."
    changed = [key for key in sorted(first.identity.keys() | second.identity.keys())
               if first.identity.get(key) != second.identity.get(key)]  # fmt: skip
    if changed:
        yield f"Not the same in both runs: {', '.join(changed)}."
    versions = [run.provenance.get("packages", {}) for run in (first, second)]
    moved = [f"{name} {versions[0].get(name, 'absent')} to {versions[1].get(name, 'absent')}"
             for name in sorted(versions[0].keys() | versions[1].keys())
             if versions[0].get(name) != versions[1].get(name)]  # fmt: skip
    if moved:
        yield f"Packages changed: {', '.join(moved)}."
