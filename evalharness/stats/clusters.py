"""Repeated answers to one document are one cluster: 30 problems asked 4 times are 30 clusters, not 120 trials."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtr, stdtrit

from evalharness.records import Interval
from evalharness.stats.intervals import FloatArray, newcombe, normal_quantile, tango, tango_statistic, wilson

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PairedScores:
    """Scores (n,) in 0..1 of two arms on the same questions, ordered by document; `starts` (documents,) is
    the first row of each document."""

    arm: FloatArray
    baseline: FloatArray
    starts: IntArray

    @property
    def n(self) -> int:
        """Questions answered by both."""
        return len(self.arm)

    @property
    def documents(self) -> int:
        """Distinct documents among them."""
        return len(self.starts)

    @property
    def difference(self) -> float:
        """Mean score of the arm minus that of the baseline."""
        return float((self.arm - self.baseline).mean())

    @property
    def independent(self) -> bool:
        """Whether every row is a 0/1 answer to a document of its own."""
        return self.documents == self.n and is_binary(self.arm) and is_binary(self.baseline)

    def document_sums(self) -> FloatArray:
        """Sum of the score differences of each document, (documents,)."""
        sums: FloatArray = np.add.reduceat(self.arm - self.baseline, self.starts)
        return sums

    def document_means(self) -> FloatArray:
        """Mean score difference of each document, (documents,)."""
        means: FloatArray = self.document_sums() / np.diff(np.append(self.starts, self.n))
        return means


@dataclass(frozen=True, slots=True)
class Counts:
    """Gains and losses among `n` effective pairs, and the degrees of freedom behind them (None: normal)."""

    gains: float
    losses: float
    n: float
    freedom: int | None

    def quantile(self, level: float) -> float:
        """Two-sided quantile of `level`."""
        return quantile(level, self.freedom)


def is_binary(scores: FloatArray) -> bool:
    """Whether every score is exactly 0 or 1."""
    return bool(((scores == 0) | (scores == 1)).all())


def quantile(level: float, freedom: int | None) -> float:
    """Two-sided quantile of Student's t with `freedom` degrees, or of the normal."""
    return normal_quantile(level) if freedom is None else float(stdtrit(freedom, 0.5 + level / 2))


def effective_counts(pairs: PairedScores) -> Counts:
    """Gains, losses and n after division by the design effect (Rao and Scott 1992).

    The design effect is the variance of the difference between documents over that of independent answers,
    at least 1. Where neither varies it cannot be estimated; then a document counts once, as if its answers
    were copies of each other. Assumes independent documents.
    """
    change = pairs.arm - pairs.baseline
    gains, losses = float(change[change > 0].sum()), float(-change[change < 0].sum())
    if pairs.independent:
        return Counts(gains, losses, pairs.n, None)
    sizes = np.diff(np.append(pairs.starts, pairs.n))
    single = float((change * change).sum()) - pairs.n * pairs.difference**2
    effective = float(effective_n(pairs.document_sums() - sizes * pairs.difference, single, pairs.n))
    scale = effective / pairs.n
    return Counts(gains * scale, losses * scale, effective, max(pairs.documents - 1, 1))


def effective_n(residuals: FloatArray, single: npt.ArrayLike, n: int) -> FloatArray:
    """`n` answers over their design effect, (...,).

    `residuals` (..., documents) are the documents' sums about their expectation, `single` (...,) the sum of
    squares that independent answers would have.
    """
    documents = residuals.shape[-1]
    between = (residuals * residuals).sum(axis=-1) * documents / max(documents - 1, 1)
    independent = np.asarray(single, dtype=np.float64)
    tiny = 1e-12 * n
    known = (between > tiny) & (independent > tiny)
    ratio = np.divide(independent, between, out=np.zeros(np.shape(between)), where=known)
    return np.where(known, np.minimum(n * ratio, n), float(documents))


def difference_interval(pairs: PairedScores, level: float) -> Interval:
    """Interval of arm minus baseline: Tango's for one 0/1 answer a document; for repeated answers the same
    on effective counts with Student's t on documents - 1 degrees of freedom."""
    counts = effective_counts(pairs)
    interval = tango(counts.gains, counts.losses, counts.n, level, counts.quantile(level))
    return interval if counts.freedom is None else replace(interval, method="Tango, Rao-Scott clusters")


def second_interval(pairs: PairedScores, level: float) -> Interval | None:
    """The difference by another estimator, to check the first by: Newcombe's for one 0/1 answer a document,
    the cluster t of document means for repeated ones."""
    if not pairs.independent:
        return cluster_t_interval(pairs.document_means(), level)
    cells = np.bincount((2 * pairs.arm + pairs.baseline).astype(np.int64), minlength=4)
    neither, losses, gains, both = (float(count) for count in cells)
    return newcombe(both, gains, losses, neither, level)


def accuracy_interval(scores: FloatArray, starts: IntArray, level: float) -> Interval:
    """Interval of a mean score: Wilson's for one 0/1 answer a document; for repeated answers Wilson's on the
    effective n (Rao and Scott 1992) with Student's t on documents - 1 degrees of freedom."""
    n, documents = len(scores), len(starts)
    if documents == n and is_binary(scores):
        return wilson(float(scores.sum()), n, level)
    mean = float(scores.mean())
    sizes = np.diff(np.append(starts, n))
    residuals = np.add.reduceat(scores, starts) - sizes * mean
    effective = float(effective_n(residuals, n * mean * (1 - mean), n))
    freedom = max(documents - 1, 1)
    interval = wilson(mean * effective, effective, level, quantile(level, freedom))
    return replace(interval, method="Wilson, Rao-Scott clusters")


def cluster_t_interval(document_means: FloatArray, level: float) -> Interval | None:
    """Student's t interval of a mean of document means; documents independent, many or near normal.

    None for fewer than two documents, or when all are alike: a width of zero would claim certainty.
    """
    documents = len(document_means)
    if documents < 2 or float(np.ptp(document_means)) == 0:
        return None
    half = quantile(level, documents - 1) * float(document_means.std(ddof=1)) / np.sqrt(documents)
    mean = float(document_means.mean())
    return Interval(mean - half, mean + half, level, "cluster t")


def tail_above(statistic: float, freedom: int | None) -> float:
    """Upper tail of the normal, or of Student's t with `freedom` degrees."""
    return float(ndtr(-statistic) if freedom is None else stdtr(freedom, -statistic))


def non_inferiority(pairs: PairedScores, margin: float) -> float:
    """One-sided p value of "arm is worse by `margin` or more" (Tango 1998's score test; clusters as in
    `effective_counts`)."""
    counts = effective_counts(pairs)
    statistic = float(tango_statistic(counts.gains, counts.losses, counts.n, -margin))
    return tail_above(statistic, counts.freedom)
