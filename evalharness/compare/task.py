"""One task: its arms side by side, and every figure but the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalharness.answers import as_table
from evalharness.arms import base_name, concurrencies, deciding, first_run, is_further_run
from evalharness.compare.arms import PRIMARY, ArmColumns, PairedRows, against, agreement, arm_score, pair
from evalharness.compare.contrasts import contrast, noise_floor, recover
from evalharness.compare.pairing import first_documents, planned, refuse_other_prompts
from evalharness.compare.published import published_figures, published_notes
from evalharness.policy import Policy
from evalharness.records import (
    ArmScore,
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
from evalharness.table import SampleTable

UNJUDGED = Verdict(Outcome.INCONCLUSIVE, ("not judged yet",))
ArmSamples = Mapping[str, Sequence[Sample] | SampleTable]
Columns = Mapping[str, ArmColumns]


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """An arm that ended after the first `documents` of the plan, which `saved` that many answers."""

    documents: int
    saved: int


@dataclass(frozen=True, slots=True)
class TaskArms:
    """The columns of a task's arms. `asked` counts the questions due of each arm; `pairs` holds the rows that
    two arms share, by (arm, baseline)."""

    name: str
    reference: str | None
    arms: Columns
    asked: Mapping[str, int]
    stopped: Mapping[str, EarlyStop]
    pairs: Mapping[tuple[str, str], PairedRows]

    @property
    def documents(self) -> int:
        """Most documents any arm answered."""
        return max((len(arm.table.starts) for arm in self.arms.values()), default=0)

    @property
    def repeats(self) -> int:
        """Most answers any arm gave to one document."""
        return max((_repeats(arm.table) for arm in self.arms.values()), default=1)


def load_task(name: str, run: Run, reference: str | None, samples: ArmSamples) -> TaskArms:
    """Bring the answers of one task into columns and pair them.

    Raises:
        PairingError: arms were asked different prompts, or one answers a question twice.
        RecordError: answers carry no primary score.
    """
    ordered = [arm for arm in dict.fromkeys([*(a.name for a in run.arms), *samples]) if arm in samples]
    tables = {arm: table for arm in ordered if len(table := as_table(samples[arm]))}
    plan = planned(list(tables.values()))
    stopped = {arm: EarlyStop(**stop) for arm, stop in early_stops(run, name).items() if arm in tables}
    for arm, stop in stopped.items():
        tables[arm] = tables[arm].take(first_documents(tables[arm].doc_id, plan, stop.documents))
    captures = {arm: base_name(arm) for arm in tables} | {arm.name: arm.capture for arm in run.arms}
    asked = {a: len(first_documents(plan, plan, stopped[a].documents)) if a in stopped else len(plan) for a in tables}
    return arrange(name, reference, tables, captures, asked, stopped)


def arrange(
    name: str,
    reference: str | None,
    tables: Mapping[str, SampleTable],
    captures: Mapping[str, str],
    asked: Mapping[str, int],
    stopped: Mapping[str, EarlyStop],
) -> TaskArms:
    """Pair the arms of one task; raises as `load_task` does."""
    refuse_other_prompts(name, tables)
    arms = {arm: ArmColumns.of(arm, captures[arm], table) for arm, table in tables.items()}
    pairs = {(one, two): pair(arms[one], arms[two]) for one, two in _compared(arms, reference)}
    return TaskArms(name, reference, arms, asked, stopped, pairs)


def early_stops(run: Run, task: str) -> Mapping[str, Mapping[str, int]]:
    """Arm -> {documents, saved} of the arms of `task` that ended early, as the runner recorded it."""
    stops: Mapping[str, Mapping[str, int]] = run.provenance.get("early_stop", {}).get(task, {})
    return stops


def measure(task: TaskArms, spec: Mapping[str, object], policy: Policy, seed: int) -> TaskComparison:
    """Every figure of a task with at least one answer but its verdict."""
    documents, repeats = task.documents, task.repeats
    margin, margin_note = policy.task(task.name).margin_for(documents, repeats)
    noise = tuple(_noise(task, policy.level))
    design = _design(task, noise, policy)
    scores = tuple(_score(task, arm, policy) for arm in task.arms.values())
    figures = published_figures(task.name, spec, policy, scores, documents)
    rates = gate_rates(design, margin or policy.task(task.name).margin, seed)
    notes = (margin_note, *published_notes(figures), *_stop_notes(task))
    return TaskComparison(
        task=task.name,
        metric=f"avg@{repeats}" if repeats > 1 else PRIMARY,
        repeats=repeats,
        documents=documents,
        scores=scores,
        contrasts=tuple(_contrasts(task, margin, detectable_loss(design), policy.level, seed)),
        verdict=UNJUDGED,
        recovery=tuple(_recoveries(task, policy.level, seed)),
        noise=noise,
        rates=rates,
        published=figures,
        notes=tuple(note for note in notes if note),
    )


def _repeats(table: SampleTable) -> int:
    return int(np.diff(np.append(table.starts, len(table))).max(initial=1))


def _of(arms: Columns, capture: str) -> list[str]:
    return [name for name in deciding(arms) if arms[name].capture == capture]


def _doubles(arms: Columns) -> list[tuple[str, str]]:
    """(second run of an arm, the arm) pairs; a run along another path is no second run."""
    pairs = [(name, first_run(name)) for name in arms if is_further_run(name)]
    return [(name, first) for name, first in pairs if first in arms and arms[name].capture == arms[first].capture]


def _compared(arms: Columns, reference: str | None) -> list[tuple[str, str]]:
    """Every arm with the reference, every patched arm with every stock one, every A/A pair, every arm with itself at
    the fewest requests at a time."""
    wanted = [(arm, reference) for arm in arms if reference in arms and arm != reference]
    wanted += [(arm, stock) for arm in _of(arms, "patched") for stock in _of(arms, "stock")]
    return [(arm, str(baseline)) for arm, baseline in dict.fromkeys([*wanted, *_doubles(arms), *concurrencies(arms)])]


def _score(task: TaskArms, arm: ArmColumns, policy: Policy) -> ArmScore:
    score = arm_score(arm, task.asked[arm.name], task.repeats, policy.level)
    rows = task.pairs.get((arm.name, task.reference or ""))
    if rows is None:
        return score
    return against(score, arm, task.arms[task.reference or ""], rows, 1 - 2 * policy.alpha)


def _contrasts(
    task: TaskArms, margin: float | None, detectable: float | None, level: float, seed: int
) -> Iterator[Contrast]:
    paces = concurrencies(task.arms)
    for (arm, baseline), rows in task.pairs.items():
        anytime = not task.stopped.keys().isdisjoint({arm, baseline})
        found = contrast(
            task.arms[arm], task.arms[baseline], rows, margin=margin, level=level, seed=seed, anytime=anytime
        )
        if (arm, baseline) in paces and len(rows.arm):
            found = replace(found, agreement=agreement(task.arms[arm], task.arms[baseline], rows))
        yield replace(found, detectable=detectable)


def _noise(task: TaskArms, level: float) -> Iterator[NoiseFloor]:
    for again, first in _doubles(task.arms):
        found = noise_floor(task.arms[first], task.arms[again], task.pairs[again, first], level)
        if found is not None:
            yield found


def _design(task: TaskArms, noise: Sequence[NoiseFloor], policy: Policy) -> Design:
    """This n with the share of flips an A/A pair showed (at least one), or the policy's where none ran."""
    flips = max((pair.flips for pair in noise), default=None)
    answers = task.documents * task.repeats
    share = policy.task(task.name).discordance if flips is None else max(flips, 1) / max(answers, 2)
    return Design(task.documents, task.repeats, min(share, 0.5), policy.alpha)


def _recoveries(task: TaskArms, level: float, seed: int) -> Iterator[Recovery]:
    eager, stock = _of(task.arms, "eager"), _of(task.arms, "stock")
    if eager and stock:
        for arm in _of(task.arms, "patched"):
            yield recover(task.arms[eager[0]], task.arms[stock[0]], task.arms[arm], level, seed)


def _stop_notes(task: TaskArms) -> list[str]:
    return [
        f"{arm} stopped early after {stop.documents} documents: {stop.saved} answers saved; its intervals describe, "
        "its p values hold under any number of looks"
        for arm, stop in task.stopped.items()
    ]
