"""Recovery: how much of the lost accuracy the patched arm brings back."""

from __future__ import annotations

from typing import Final

import numpy as np

from evalharness.records import Interval
from evalharness.stats.clusters import IntArray, PairedScores, difference_interval
from evalharness.stats.intervals import FloatArray

RESAMPLES: Final = 9_999


def recovery(eager: FloatArray, stock: FloatArray, patched: FloatArray) -> float | None:
    """(patched - stock) / (eager - stock) of mean scores; None unless eager is above stock."""
    lost = float(eager.mean() - stock.mean())
    return float(patched.mean() - stock.mean()) / lost if lost > 0 else None


def recovery_interval(
    eager: FloatArray, stock: FloatArray, patched: FloatArray, starts: IntArray, level: float, seed: int
) -> Interval | None:
    """Percentile interval of the paired bootstrap over documents (Efron and Tibshirani 1993), seeded.

    Documents with equal triples of scores are exchangeable, so a resample is one multinomial draw over the
    distinct triples. When patched equals eager on every document all resamples are alike; the limits are then
    those of patched - eager (Tango) on the scale of the loss. None when a resample shows no loss at all: the
    ratio has no finite interval then.
    """
    sums = np.stack([np.add.reduceat(s, starts) for s in (eager, stock, patched)], axis=1)
    triples, counts = np.unique(sums, axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(len(starts), counts / len(starts), size=RESAMPLES) @ triples
    lost = draws[:, 0] - draws[:, 1]
    if (lost <= 0).any():
        return None
    ratios = (draws[:, 2] - draws[:, 1]) / lost
    if float(np.ptp(ratios)) < 1e-12:
        return _degenerate(eager, stock, patched, starts, level)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, "paired bootstrap of documents")


def _degenerate(
    eager: FloatArray, stock: FloatArray, patched: FloatArray, starts: IntArray, level: float
) -> Interval | None:
    lost = float(eager.mean() - stock.mean())
    gap = difference_interval(PairedScores(patched, eager, starts), level)
    return Interval(1 + gap.low / lost, 1 + gap.high / lost, level, f"{gap.method} of patched - eager")
