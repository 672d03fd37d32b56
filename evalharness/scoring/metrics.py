"""avg@k and pass@k over the repeats of each problem: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import fmean


def avg_at_k(scores: Sequence[Sequence[float]]) -> float | None:
    """Mean over problems of the mean score of a problem's repeats; every problem weighs the same.

    `scores` holds one sequence of 0..1 a problem. A problem without a scored repeat (all lost to infrastructure)
    is left out; None when none is left.
    """
    means = [fmean(repeats) for repeats in scores if repeats]
    return fmean(means) if means else None


def pass_at_k(scores: Sequence[Sequence[float]], k: int) -> float | None:
    """Chance that at least one of `k` answers is right, averaged over problems.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021 (arXiv:2107.03374), for n answers of which c
    are right (score 1). Problems with fewer than `k` scored repeats are left out; None when none is left.
    """
    if k < 1:
        raise ValueError(f"k is {k}; pass@k needs at least one answer")
    chances = []
    for repeats in scores:
        n, right = len(repeats), sum(score >= 1 for score in repeats)
        if n >= k:
            chances.append(1 - comb(n - right, k) / comb(n, k))
    return fmean(chances) if chances else None
