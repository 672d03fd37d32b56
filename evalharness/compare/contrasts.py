"""Two or three arms on one task: differences, flips, noise floor, recovery."""

from __future__ import annotations

from typing import Final

import numpy as np

from evalharness.compare.arms import ArmColumns, PairedRows, paired_scores
from evalharness.compare.pairing import align, unpaired
from evalharness.records import Contrast, Flip, NoiseFloor, Recovery
from evalharness.stats import recovery as recovering
from evalharness.stats.clusters import PairedScores, difference_interval, non_inferiority, quantile, second_interval
from evalharness.stats.divergence import SAME, first_divergence
from evalharness.stats.sequential import p_above
from evalharness.stats.significance import PairedTest, paired_test, unpaired_z
from evalharness.table import document_starts

LISTED: Final = 50  # flips listed of each direction; all are counted


def contrast(
    arm: ArmColumns,
    baseline: ArmColumns,
    rows: PairedRows,
    *,
    margin: float | None,
    level: float,
    seed: int,
    anytime: bool = False,
) -> Contrast:
    """`arm` minus `baseline`; figures are None when they share no scored answer.

    `anytime`: one of the arms was stopped early, so the p values must hold under any number of looks.
    """
    counts, examples = unpaired((arm.name, baseline.name), arm.table, baseline.table)
    if not len(rows.arm):
        return Contrast(
            arm.name, baseline.name, 0, 0, None, None, 0, 0, "", None, None, None, unpaired=counts,
            unpaired_examples=tuple(examples),
        )  # fmt: skip
    pairs = paired_scores(arm, baseline, rows)
    test = _anytime_test(pairs) if anytime else paired_test(pairs, seed)
    change = pairs.arm - pairs.baseline
    return Contrast(
        arm=arm.name,
        baseline=baseline.name,
        n=pairs.n,
        documents=pairs.documents,
        difference=pairs.difference,
        interval=difference_interval(pairs, level),
        gains=int((change > 0).sum()),
        losses=int((change < 0).sum()),
        test=test.method,
        p_worse=test.p_worse,
        p_better=test.p_better,
        p_two_sided=test.p_two_sided,
        margin=margin,
        p_non_inferior=_non_inferiority(pairs, margin, anytime) if margin is not None else None,
        second_interval=second_interval(pairs, level),
        p_unpaired=unpaired_z(pairs.arm, pairs.baseline),
        unpaired=counts,
        unpaired_examples=tuple(examples),
        flips=_flips(arm, baseline, rows, pairs),
    )


def _anytime_test(pairs: PairedScores) -> PairedTest:
    means = pairs.document_means()
    return PairedTest(p_above(-means, 0.0), p_above(means, 0.0), "anytime-valid betting")


def _non_inferiority(pairs: PairedScores, margin: float, anytime: bool) -> float:
    return p_above(pairs.document_means(), -margin) if anytime else non_inferiority(pairs, margin)


def _flips(arm: ArmColumns, baseline: ArmColumns, rows: PairedRows, pairs: PairedScores) -> tuple[Flip, ...]:
    change = pairs.arm - pairs.baseline
    listed = np.concatenate([np.flatnonzero(change < 0)[:LISTED], np.flatnonzero(change > 0)[:LISTED]])
    ours, theirs = arm.table, baseline.table
    first = first_divergence(ours.tokens.take(rows.arm[listed]), theirs.tokens.take(rows.baseline[listed]))
    return tuple(
        Flip(
            doc_id=int(ours.doc_id[row]),
            doc_hash=ours.doc_hash[row].decode(),
            repeat=int(ours.repeat[row]),
            baseline_score=float(pairs.baseline[at]),
            score=float(pairs.arm[at]),
            first_divergence=None if index == SAME else int(index),
        )
        for at, row, index in zip(listed, rows.arm[listed], first, strict=True)
    )


def noise_floor(one: ArmColumns, two: ArmColumns, rows: PairedRows, level: float) -> NoiseFloor | None:
    """Difference of two runs of one arm, and the largest one their flips explain.

    The floor is the greater of the difference seen and the normal limit of a sum of document differences
    with random signs (as in the sign-flip test); zero flips mean a floor of zero.
    """
    if not len(rows.arm):
        return None
    pairs = paired_scores(two, one, rows)
    spread = float(np.sqrt((pairs.document_sums() ** 2).sum())) / pairs.n
    same = two.table.text[rows.arm] == one.table.text[rows.baseline]
    return NoiseFloor(
        arms=(one.name, two.name),
        difference=pairs.difference,
        flips=int((pairs.arm != pairs.baseline).sum()),
        identical=float(same.mean()),
        floor=max(abs(pairs.difference), quantile(level, None) * spread),
    )


def recover(eager: ArmColumns, stock: ArmColumns, patched: ArmColumns, level: float, seed: int) -> Recovery:
    """(patched - stock) / (eager - stock) on the questions all three answered."""
    tables = [arm.table for arm in (eager, stock, patched)]
    aligned = [np.arange(len(table))[rows] for table, rows in zip(tables, align(*tables), strict=True)]
    arms = (eager, stock, patched)
    count = np.logical_and.reduce([arm.scored[rows] for arm, rows in zip(arms, aligned, strict=True)])
    if not count.any():
        return Recovery(patched.name, None, None, "the three arms share no scored answer")
    one, two, three = (arm.primary()[rows[count]] for arm, rows in zip(arms, aligned, strict=True))
    value = recovering.recovery(one, two, three)
    if value is None:
        return Recovery(patched.name, None, None, f"{stock.name} loses nothing against {eager.name}")
    starts = document_starts(eager.table.document[aligned[0][count]])
    interval = recovering.recovery_interval(one, two, three, starts, level, seed)
    reason = "" if interval else "no finite interval: some resamples show no loss to recover"
    return Recovery(patched.name, value, interval, reason)
