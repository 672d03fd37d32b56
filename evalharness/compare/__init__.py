"""From two or more arms' answers to paired statistics and a verdict: pure functions, no input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evalharness.compare.arms import PRIMARY, ArmColumns, PairedRows, against, arm_score, pair
from evalharness.compare.contrasts import contrast, noise_floor, recover
from evalharness.compare.pairing import count_questions, refuse_other_prompts
from evalharness.compare.published import published_figures, published_notes, quoted
from evalharness.gate import Context, arm_outcome, judge_run, judge_task
from evalharness.policy import Policy
from evalharness.records import (
    ArmEvidence,
    ArmScore,
    ArmSummary,
    Comparison,
    Contrast,
    NoiseFloor,
    Outcome,
    Recovery,
    Run,
    Sample,
    TaskComparison,
    Verdict,
)
from evalharness.stats.power import Design, detectable_loss, gate_rates
from evalharness.stats.significance import holm
from evalharness.table import SampleTable

Samples = Mapping[str, Mapping[str, Sequence[Sample] | SampleTable]]
UNJUDGED = Verdict(Outcome.INCONCLUSIVE, ("not judged yet",))
ON_TRUST = "Capture paths are taken on trust: policy {policy} asks for no evidence."

__all__ = ["compare"]


def compare(run: Run, samples: Samples, evidence: Mapping[str, ArmEvidence], policy: Policy) -> Comparison:
    """Pair the arms of `run` and judge them by `policy`.

    `samples` maps task -> arm -> answers, as Sample objects or columns; an arm that has none may be absent.

    Raises:
        PairingError: arms were asked different prompts, or an arm answers one question twice.
        RecordError: answers carry no primary score.
    """
    plan = _plan(run, evidence, policy)
    measured = [_Task(name, plan, samples[name]).measure() for name in _task_names(run, samples)]
    tasks = tuple(_judged(task, plan.context) for task in _adjust(tuple(t for t in measured if t.scores)))
    return Comparison(
        run_id=run.run_id,
        name=run.name,
        created=run.finished or run.created,
        engine=str(_engine(run).get("kind", "unknown")),
        model=str(_engine(run).get("model", "unknown")),
        arms=tuple(arm.name for arm in run.arms),
        reference=plan.context.reference,
        policy=policy.name,
        alpha=policy.alpha,
        level=policy.level,
        seed=plan.seed,
        tasks=tasks,
        verdict=judge_run(tasks),
        published=quoted(run.spec, {task.task for task in tasks}),
        notes=() if policy.required_evidence else (ON_TRUST.format(policy=policy.name),),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    run: Run
    context: Context
    seed: int


def _plan(run: Run, evidence: Mapping[str, ArmEvidence], policy: Policy) -> _Plan:
    stopped = bool(run.provenance.get("early_stop"))
    context = Context(run.arms, reference_arm(run.arms), evidence, policy, early_stop=stopped)
    return _Plan(run, context, int(run.spec.get("seed", 0)))


def reference_arm(arms: Sequence[ArmSummary]) -> str | None:
    """The arm the others are held against: the first eager one, or else the first."""
    first = [arm for arm in arms if "#" not in arm.name] or list(arms)
    return next((arm.name for arm in first if arm.capture == "eager"), first[0].name if first else None)


def _engine(run: Run) -> Mapping[str, Any]:
    engine: Mapping[str, Any] = run.spec.get("engine", {})
    return engine


def _task_names(run: Run, samples: Samples) -> list[str]:
    """Tasks that have samples, in the spec's order."""
    named = [str(task["name"]) for task in run.spec.get("tasks", ())]
    return [name for name in dict.fromkeys([*named, *samples]) if name in samples]


class _Task:
    """The measuring of one task; holds the columns and row pairs that several figures share."""

    def __init__(self, name: str, plan: _Plan, samples: Mapping[str, Sequence[Sample] | SampleTable]) -> None:
        self.name, self.plan, self.policy = name, plan, plan.context.policy
        tables = {arm: _table(samples[arm]) for arm in _arm_names(plan.run, samples)}
        tables = {arm: table for arm, table in tables.items() if len(table)}
        if tables:
            refuse_other_prompts(name, tables)
        captures = {arm.name: arm.capture for arm in plan.run.arms}
        self.arms = {a: ArmColumns.of(a, captures.get(a, a.partition("#")[0]), t) for a, t in tables.items()}
        self.repeats = max((_repeats(table) for table in tables.values()), default=1)
        self.asked = count_questions(tables) if tables else 0
        self.documents = max((len(table.starts) for table in tables.values()), default=0)
        self.margin, self.margin_note = None, ""
        if self.documents:
            self.margin, self.margin_note = self.policy.task(name).margin_for(self.documents, self.repeats)
        self._pairs: dict[tuple[str, str], PairedRows] = {}

    def measure(self) -> TaskComparison:
        """Every figure of the task but its verdict."""
        noise = tuple(self._noise())
        scores = tuple(self._score(arm) for arm in self.arms.values())
        figures = published_figures(self.name, self.plan.run.spec, self.policy, scores, self.documents)
        return TaskComparison(
            task=self.name,
            metric=f"avg@{self.repeats}" if self.repeats > 1 else PRIMARY,
            repeats=self.repeats,
            documents=self.documents,
            scores=scores,
            contrasts=tuple(self._contrasts(noise)),
            verdict=UNJUDGED,
            recovery=tuple(self._recoveries()),
            noise=noise,
            rates=gate_rates(self._design(noise), self.margin, self.plan.seed) if self.margin else None,
            published=figures,
            notes=tuple(note for note in (self.margin_note, *published_notes(figures)) if note),
        )

    def _rows(self, arm: str, baseline: str) -> PairedRows:
        if (arm, baseline) not in self._pairs:
            self._pairs[arm, baseline] = pair(self.arms[arm], self.arms[baseline])
        return self._pairs[arm, baseline]

    def _score(self, arm: ArmColumns) -> ArmScore:
        score = arm_score(arm, self.asked, self.repeats, self.policy.level)
        reference = self.arms.get(self.plan.context.reference or "")
        if reference is None or reference is arm:
            return score
        return against(score, arm, reference, self._rows(arm.name, reference.name), 1 - 2 * self.policy.alpha)

    def _contrasts(self, noise: Sequence[NoiseFloor]) -> Iterator[Contrast]:
        detectable = detectable_loss(self._design(noise))
        for arm, baseline in self._compared():
            found = contrast(
                self.arms[arm], self.arms[baseline], self._rows(arm, baseline), self.margin, self.policy.level,
                self.plan.seed,
            )  # fmt: skip
            yield replace(found, detectable=detectable)

    def _compared(self) -> list[tuple[str, str]]:
        """Every arm with the reference, every patched arm with every stock one, every A/A pair."""
        reference = self.plan.context.reference
        wanted = [(arm, reference) for arm in self.arms if arm != reference and reference in self.arms]
        wanted += [(arm, stock) for arm in self._of("patched") for stock in self._of("stock")]
        wanted += [(again, arm) for arm, again in self._doubles()]
        return [(arm, str(baseline)) for arm, baseline in dict.fromkeys(wanted)]

    def _of(self, capture: str) -> list[str]:
        return [name for name, arm in self.arms.items() if arm.capture == capture and "#" not in name]

    def _doubles(self) -> list[tuple[str, str]]:
        """(arm, second run of it) pairs."""
        return [
            (name.partition("#")[0], name) for name in self.arms if "#" in name and name.partition("#")[0] in self.arms
        ]

    def _noise(self) -> Iterator[NoiseFloor]:
        for one, two in self._doubles():
            found = noise_floor(self.arms[one], self.arms[two], self._rows(two, one), self.policy.level)
            if found is not None:
                yield found

    def _design(self, noise: Sequence[NoiseFloor]) -> Design:
        """This n with the share of flips an A/A pair showed, or the policy's where none ran."""
        flips = max((pair.flips for pair in noise), default=None)
        share = self.policy.discordance if flips is None else max(flips, 1) / max(self.asked, 2)
        return Design(self.documents, self.repeats, min(share, 0.5), self.policy.alpha)

    def _recoveries(self) -> Iterator[Recovery]:
        eager, stock = self._of("eager"), self._of("stock")
        if eager and stock:
            for arm in self._of("patched"):
                yield recover(
                    self.arms[eager[0]], self.arms[stock[0]], self.arms[arm], self.policy.level, self.plan.seed
                )


def _table(samples: Sequence[Sample] | SampleTable) -> SampleTable:
    return samples if isinstance(samples, SampleTable) else SampleTable.from_samples(samples)


def _arm_names(run: Run, samples: Mapping[str, Sequence[Sample] | SampleTable]) -> list[str]:
    return [name for name in dict.fromkeys([*(arm.name for arm in run.arms), *samples]) if name in samples]


def _repeats(table: SampleTable) -> int:
    return int(np.diff(np.append(table.starts, len(table))).max())


def _adjust(tasks: tuple[TaskComparison, ...]) -> list[TaskComparison]:
    """Holm-adjust each question's p values over the tasks; a question is one (arm, baseline, direction)."""
    adjusted = [list(task.contrasts) for task in tasks]
    for key in dict.fromkeys((c.arm, c.baseline) for task in tasks for c in task.contrasts):
        places = [(t, i) for t, cs in enumerate(adjusted) for i, c in enumerate(cs) if (c.arm, c.baseline) == key]
        worse = holm([adjusted[t][i].p_worse for t, i in places])
        better = holm([adjusted[t][i].p_better for t, i in places])
        for (t, i), p_worse, p_better in zip(places, worse, better, strict=True):
            adjusted[t][i] = replace(adjusted[t][i], p_worse_holm=p_worse, p_better_holm=p_better)
    return [replace(task, contrasts=tuple(cs)) for task, cs in zip(tasks, adjusted, strict=True)]


def _judged(task: TaskComparison, context: Context) -> TaskComparison:
    scores = tuple(replace(score, outcome=arm_outcome(score, task, context)) for score in task.scores)
    task = replace(task, scores=scores)
    return replace(task, verdict=judge_task(task, context))
