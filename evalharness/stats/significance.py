"""Tests of "the two arms score alike", and the adjustment for several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import bdtr, gammaln, ndtr

from evalharness.stats.clusters import IntArray, PairedScores
from evalharness.stats.intervals import FloatArray

EXACT_SUPPORT: Final = 20_000  # largest total of |differences| whose null distribution is built exactly
DRAWS: Final = 99_999
MOST_GROUPS: Final = 2_000  # distinct |differences| up to which sign flips are drawn


@dataclass(frozen=True, slots=True)
class PairedTest:
    """One-sided p values of "arm is worse" and "arm is better", the two-sided one, and the test's name."""

    p_worse: float
    p_better: float
    method: str

    @property
    def p_two_sided(self) -> float:
        """Twice the smaller one-sided p value."""
        return min(1.0, 2 * min(self.p_worse, self.p_better))


def paired_test(pairs: PairedScores, seed: int) -> PairedTest:
    """Exact McNemar test for one 0/1 answer a document, sign-flip permutation of documents otherwise."""
    if pairs.independent:
        change = pairs.arm - pairs.baseline
        return mcnemar(int((change > 0).sum()), int((change < 0).sum()))
    return sign_flip(pairs.document_sums(), seed)


def mcnemar(gains: int, losses: int) -> PairedTest:
    """Exact McNemar test (McNemar 1947, binomial form): under the null each discordant pair is a fair coin.

    Assumes independent pairs; conditional on the number of discordant ones, hence conservative.
    """
    discordant = gains + losses
    worse = float(bdtr(gains, discordant, 0.5)) if discordant else 1.0
    better = float(bdtr(losses, discordant, 0.5)) if discordant else 1.0
    return PairedTest(min(worse, 1.0), min(better, 1.0), "exact McNemar")


def sign_flip(differences: FloatArray, seed: int) -> PairedTest:
    """Sign-flip permutation test of a sum (Fisher 1935): under the null each document's difference is as
    likely to have either sign.

    Exact for differences on a lattice of 1/12 (thirds and quarters) up to EXACT_SUPPORT steps, by convolving
    the binomials of equal sizes; otherwise DRAWS seeded flips with the add-one rule of Phipson and Smyth
    (2010); beyond MOST_GROUPS distinct sizes the normal limit, which that many documents reach.
    """
    sizes, counts = np.unique(np.round(np.abs(differences[differences != 0]), 12), return_counts=True)
    observed = float(differences.sum())
    steps = _lattice(sizes)
    if steps is not None and int(steps @ counts) <= EXACT_SUPPORT:
        return _exact_flips(steps, counts, observed, float(sizes @ counts))
    if len(sizes) <= MOST_GROUPS:
        return _drawn_flips(sizes, counts, observed, seed)
    z = observed / float(np.sqrt((counts * sizes**2).sum()))
    return PairedTest(float(ndtr(z)), float(ndtr(-z)), "sign flip, normal limit")


def _lattice(sizes: FloatArray) -> IntArray | None:
    """Sizes in whole steps of their lattice, or None if they lie on none."""
    for unit in (1, 12):
        steps = np.rint(sizes * unit).astype(np.int64)
        if np.allclose(steps, sizes * unit, rtol=0, atol=1e-9 * unit):
            return steps
    return None


def _exact_flips(steps: IntArray, counts: IntArray, observed: float, total: float) -> PairedTest:
    """Distribution of the steps that keep a plus sign; the sum is twice that less the total."""
    weights = np.ones(1)
    for step, count in zip(steps, counts, strict=True):
        group = np.zeros(step * count + 1)
        group[::step] = _fair_binomial(int(count))
        weights = np.convolve(weights, group)
    if total == 0:
        return PairedTest(1.0, 1.0, "exact sign flip")
    plus = round((observed + total) / 2 * (len(weights) - 1) / total)
    worse, better = float(weights[: plus + 1].sum()), float(weights[plus:].sum())
    return PairedTest(min(worse, 1.0), min(better, 1.0), "exact sign flip")


def _fair_binomial(n: int) -> FloatArray:
    k = np.arange(n + 1)
    probabilities: FloatArray = np.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) - n * np.log(2))
    return probabilities


def _drawn_flips(sizes: FloatArray, counts: IntArray, observed: float, seed: int) -> PairedTest:
    rng = np.random.default_rng(seed)
    sums = np.zeros(DRAWS)
    for size, count in zip(sizes, counts, strict=True):
        sums += size * (2.0 * rng.binomial(int(count), 0.5, DRAWS) - int(count))
    slack = 1e-9 * max(1.0, abs(observed))
    worse = (1 + int((sums <= observed + slack).sum())) / (DRAWS + 1)
    better = (1 + int((sums >= observed - slack).sum())) / (DRAWS + 1)
    return PairedTest(worse, better, f"sign flip, {DRAWS} seeded draws")


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Step-down adjusted p values (Holm 1979), in the order given; any dependence. None stays None.

    Four lines, because statsmodels takes longer to import than a comparison may take; a test holds them to it.
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = highest
    return adjusted


def unpaired_z(arm: FloatArray, baseline: FloatArray) -> float | None:
    """Two-sided p value of the pooled two-sample z test, shown only for reference: it takes paired answers
    for independent ones. None when both arms have the same constant score."""
    pooled = (arm.sum() + baseline.sum()) / (len(arm) + len(baseline))
    variance = pooled * (1 - pooled) * (1 / len(arm) + 1 / len(baseline))
    if variance <= 0:
        return None
    return float(2 * ndtr(-abs(arm.mean() - baseline.mean()) / np.sqrt(variance)))
