"""One arm on one task: its score, its causes, and how far it follows the reference arm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evalharness.compare.pairing import align
from evalharness.errors import RecordError
from evalharness.records import Agreement, ArmScore, Cause, Interval, MetricScore
from evalharness.stats.clusters import PairedScores, accuracy_interval, difference_interval, quantile
from evalharness.stats.divergence import SAME, first_divergence
from evalharness.stats.repeats import pass_at_k
from evalharness.table import CAUSES, BoolArray, FloatArray, IntArray, SampleTable, document_starts

PRIMARY: Final = "exact_match"  # lm-eval's own score; every other one is shown beside it
ROBUST: Final = "robust"


@dataclass(frozen=True, slots=True)
class ArmColumns:
    """An arm's answers and what it is called; `scored` marks the rows that count."""

    name: str
    capture: str
    table: SampleTable
    scored: BoolArray

    @classmethod
    def of(cls, name: str, capture: str, table: SampleTable) -> ArmColumns:
        """Mark the scored rows; raises RecordError when answers carry no primary score, or any score is not in 0..1."""
        for metric, column in table.scores.items():
            if bool(((column < 0) | (column > 1)).any()):
                raise RecordError(f"Samples of arm {name} have a {metric!r} outside 0..1.", "Restore the samples file.")
        scores = table.scores.get(PRIMARY)
        answered = table.answered
        scored = answered if scores is None else answered & ~np.isnan(scores)
        if bool((answered & ~scored).any()) or (scores is None and bool(answered.any())):
            raise RecordError(
                f"Samples of arm {name} carry no score {PRIMARY!r}.", "Score them again: evalharness rescore."
            )
        return cls(name, capture, table, scored)

    def primary(self) -> FloatArray:
        """Primary scores of all rows; meaningless where not scored."""
        empty: FloatArray = np.full(len(self.table), np.nan)
        return self.table.scores.get(PRIMARY, empty)


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Rows (n,) of two arms that answered the same questions and count, and their documents' first rows."""

    arm: IntArray
    baseline: IntArray
    starts: IntArray


def pair(arm: ArmColumns, baseline: ArmColumns) -> PairedRows:
    """Rows of the questions both arms answered."""
    ours, theirs = align(arm.table, baseline.table)
    count = arm.scored[ours] & baseline.scored[theirs]
    rows = np.arange(len(arm.table))[ours][count]
    return PairedRows(rows, np.arange(len(baseline.table))[theirs][count], document_starts(arm.table.document[rows]))


def paired_scores(arm: ArmColumns, baseline: ArmColumns, rows: PairedRows) -> PairedScores:
    """Primary scores of paired rows."""
    return PairedScores(arm.primary()[rows.arm], baseline.primary()[rows.baseline], rows.starts)


def arm_score(arm: ArmColumns, asked: int, repeats: int, level: float) -> ArmScore:
    """Score, causes and secondary metrics of `arm` alone."""
    table, scored = arm.table, arm.scored
    scores = arm.primary()[scored]
    starts = document_starts(table.document[scored])
    n = len(scores)
    return ArmScore(
        arm=arm.name,
        capture=arm.capture,
        n=n,
        documents=len(starts),
        asked=asked,
        coverage=n / asked if asked else None,
        value=float(scores.mean()) if n else None,
        interval=accuracy_interval(scores, starts, level) if n else None,
        errors=int((~table.answered).sum()),
        causes=_causes(table),
        lost=_lost(table.cause[scored], scores),
        truncated=int(_truncated(table)[scored].sum()),
        degenerate=int(table.degenerate[scored].sum()),
        output_tokens=float(table.output_tokens[scored].mean()) if n else None,
        seconds=float(table.seconds[scored].mean()) if n else None,
        secondary=_secondary(arm, starts, repeats, level),
        disagreements=_disagreements(arm),
    )


def _truncated(table: SampleTable) -> BoolArray:
    uncredited = table.capped & ~(table.scores.get(PRIMARY, np.zeros(len(table))) > 0)
    marked: BoolArray = uncredited | (table.cause == CAUSES.index(Cause.TRUNCATED))
    return marked


def _causes(table: SampleTable) -> dict[str, int]:
    counts = np.bincount(table.cause, minlength=len(CAUSES))
    return {cause.value: int(count) for cause, count in zip(CAUSES, counts, strict=True) if count}


def _lost(cause: np.ndarray, scores: FloatArray) -> dict[str, float]:
    """Accuracy lost to each cause: the missing points of its answers over all answers."""
    points = np.bincount(cause, weights=1 - scores, minlength=len(CAUSES))
    return {c.value: float(p) / len(scores) for c, p in zip(CAUSES, points, strict=True) if p > 0}


def _secondary(arm: ArmColumns, starts: IntArray, repeats: int, level: float) -> tuple[MetricScore, ...]:
    found = []
    if repeats > 1:
        best = pass_at_k(arm.primary()[arm.scored], starts) if len(starts) else np.zeros(0)
        found.append(_metric(f"pass@{repeats}", best, np.arange(len(best)), level))
    for name, column in arm.table.scores.items():
        if name != PRIMARY:
            rows = np.flatnonzero(arm.scored & ~np.isnan(column))
            found.append(_metric(name, column[rows], document_starts(arm.table.document[rows]), level))
    return tuple(found)


def _metric(name: str, scores: FloatArray, starts: IntArray, level: float) -> MetricScore:
    if not len(scores):
        return MetricScore(name, 0, None, None)
    return MetricScore(name, len(scores), float(scores.mean()), accuracy_interval(scores, starts, level))


def _disagreements(arm: ArmColumns) -> int:
    """Answers that lm-eval's extractor and the robust one score differently."""
    robust = arm.table.scores.get(ROBUST)
    if robust is None:
        return 0
    both = arm.scored & ~np.isnan(robust)
    return int((robust[both] != arm.primary()[both]).sum())


def against(score: ArmScore, arm: ArmColumns, reference: ArmColumns, rows: PairedRows, level: float) -> ArmScore:
    """`score` with the arm's agreement, length and degeneration relative to the reference arm."""
    if not len(rows.arm):
        return score
    ratio = _length_ratio(arm, reference, rows, level)
    return replace(
        score,
        agreement=agreement(arm, reference, rows),
        length_ratio=ratio[0] if ratio else None,
        length_interval=ratio[1] if ratio else None,
        degenerate_excess=_degenerate_excess(arm, reference, rows, level),
    )


def agreement(arm: ArmColumns, reference: ArmColumns, rows: PairedRows) -> Agreement:
    """How far `arm` follows `reference` on `rows`, of which there is at least one."""
    ours, theirs = arm.table.tokens.take(rows.arm), reference.table.tokens.take(rows.baseline)
    longer = np.maximum(ours.length, theirs.length)
    if not longer.any():
        same = arm.table.text[rows.arm] == reference.table.text[rows.baseline]
        return Agreement(reference.name, len(rows.arm), None, float(same.mean()))
    first = first_divergence(ours, theirs)
    parted = first[first != SAME]
    shared = np.where(first == SAME, longer, first)
    return Agreement(
        reference=reference.name,
        pairs=len(rows.arm),
        tokens=float(shared.sum() / longer.sum()),
        identical=1 - len(parted) / len(first),
        first=(int(parted.min()), float(np.median(parted)), int(parted.max())) if len(parted) else None,
    )


def _length_ratio(
    arm: ArmColumns, reference: ArmColumns, rows: PairedRows, level: float
) -> tuple[float, Interval] | None:
    """Mean output tokens of `arm` over the reference arm's, with the ratio estimator's interval (Cochran 1977,
    section 6.3; documents independent). None when the reference wrote nothing."""
    ours = np.add.reduceat(arm.table.output_tokens[rows.arm], rows.starts)
    theirs = np.add.reduceat(reference.table.output_tokens[rows.baseline], rows.starts)
    if not theirs.sum():
        return None
    documents, ratio = len(ours), float(ours.sum() / theirs.sum())
    residuals = ours - ratio * theirs
    error = float(np.sqrt((residuals**2).sum() * documents / max(documents - 1, 1)) / theirs.sum())
    half = quantile(level, max(documents - 1, 1)) * error
    return ratio, Interval(ratio - half, ratio + half, level, "ratio estimator")


def _degenerate_excess(arm: ArmColumns, reference: ArmColumns, rows: PairedRows, level: float) -> Interval:
    """Interval of the arm's share of degenerate answers less the reference arm's."""
    ours = arm.table.degenerate[rows.arm].astype(np.float64)
    theirs = reference.table.degenerate[rows.baseline].astype(np.float64)
    return difference_interval(PairedScores(ours, theirs, rows.starts), level)
