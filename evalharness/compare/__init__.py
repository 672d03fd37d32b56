"""From two or more arms' answers to paired statistics and a verdict: pure functions, no input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evalharness.arms import deciding
from evalharness.compare.published import quoted
from evalharness.compare.task import ArmSamples, TaskArms, load_task, measure
from evalharness.gate import Context, arm_outcome, judge_run, judge_task
from evalharness.policy import Policy
from evalharness.records import ArmEvidence, ArmSummary, Comparison, Run, Sample, TaskComparison
from evalharness.stats.divergence import SAME, first_divergence
from evalharness.stats.significance import holm
from evalharness.table import Tokens

Samples = Mapping[str, ArmSamples]
ON_TRUST = "Capture paths are taken on trust: policy {policy} asks for no evidence."

__all__ = ["Samples", "compare", "first_divergences", "judge", "reference_arm"]


def compare(run: Run, samples: Samples, evidence: Mapping[str, ArmEvidence], policy: Policy) -> Comparison:
    """Pair the arms of `run` and judge them by `policy`.

    `samples` maps task -> arm -> answers, as Sample objects or columns; an arm that has none may be absent.

    Raises:
        PairingError: arms were asked different prompts, or an arm answers one question twice.
        RecordError: answers carry no primary score.
    """
    reference = reference_arm(run.arms)
    loaded = [load_task(name, run, reference, samples[name]) for name in _task_names(run, samples)]
    stopped = any(task.stopped for task in loaded)
    return judge(run, loaded, Context(run.arms, reference, evidence, policy, early_stop=stopped))


def judge(run: Run, loaded: Sequence[TaskArms], context: Context) -> Comparison:
    """Measure and judge tasks whose arms are paired."""
    policy, seed = context.policy, int(run.spec.get("seed", 0))
    measured = [measure(task, run.spec, policy, seed) for task in loaded if task.arms]
    tasks = tuple(_judged(task, context) for task in _adjust(measured))
    engine = run.spec.get("engine", {})
    return Comparison(
        run_id=run.run_id,
        name=run.name,
        created=run.finished or run.created,
        engine=str(engine.get("kind", "unknown")),
        model=str(engine.get("model", "unknown")),
        arms=tuple(arm.name for arm in run.arms),
        reference=context.reference,
        policy=policy.name,
        alpha=policy.alpha,
        level=policy.level,
        seed=seed,
        tasks=tasks,
        verdict=judge_run(tasks, run.arms),
        published=quoted(run.spec, {task.task for task in tasks}),
        notes=tuple(_notes(loaded, policy)),
    )


def first_divergences(arm: Sequence[Sample], reference: Sequence[Sample]) -> dict[tuple[str, int, int], int | None]:
    """Index of the first token that differs, by the key of each answer both arms gave; None where none does."""
    known = {sample.key: sample.token_ids for sample in reference}
    shared = [sample for sample in arm if sample.key in known]
    found = first_divergence(Tokens.of([s.token_ids for s in shared]), Tokens.of([known[s.key] for s in shared]))
    return {s.key: None if at == SAME else int(at) for s, at in zip(shared, found, strict=True)}


def reference_arm(arms: Sequence[ArmSummary]) -> str | None:
    """The arm the others are held against: the first eager one, or else the first."""
    names = deciding(arm.name for arm in arms)
    first = [arm for arm in arms if arm.name in names] or list(arms)
    return next((arm.name for arm in first if arm.capture == "eager"), first[0].name if first else None)


def _task_names(run: Run, samples: Samples) -> list[str]:
    """Tasks that have samples, in the spec's order."""
    named = [str(task["name"]) for task in run.spec.get("tasks", ())]
    return [name for name in dict.fromkeys([*named, *samples]) if name in samples]


def _notes(loaded: Sequence[TaskArms], policy: Policy) -> Iterator[str]:
    """What holds for all tasks of a comparison."""
    if not policy.required_evidence:
        yield ON_TRUST.format(policy=policy.name)
    saved = sum(stop.saved for task in loaded for stop in task.stopped.values())
    if saved:
        yield f"Stopping early saved {saved} answers."


def _adjust(tasks: Sequence[TaskComparison]) -> list[TaskComparison]:
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
