"""Confidence intervals of proportions and of paired differences; fractional counts are allowed throughout,
because the counts of repeated answers are divided by their design effect first (see clusters.py)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from evalharness.records import Interval

FloatArray = npt.NDArray[np.float64]
BISECTIONS: Final = 40  # halvings of [-1, 1]: limits to 2e-12


def normal_quantile(level: float) -> float:
    """Two-sided standard normal quantile of `level`."""
    return float(ndtri(0.5 + level / 2))


def wilson(right: float, n: float, level: float = 0.95, quantile: float | None = None) -> Interval:
    """Score interval of a proportion (Wilson 1927, method 3 of Newcombe 1998a); n independent trials.

    `quantile` replaces the normal one, for a variance that was itself estimated. Never of zero width: 0 of n
    has the upper limit z2 / (n + z2).
    """
    z = normal_quantile(level) if quantile is None else quantile
    centre = (right + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * float(np.sqrt(max(right * (n - right) / n, 0.0) + z * z / 4))
    low, high = (0.0 if right == 0 else max(0.0, centre - half)), (1.0 if right == n else min(1.0, centre + half))
    return Interval(low, high, level, "Wilson")


def newcombe(both: float, gains: float, losses: float, neither: float, level: float = 0.95) -> Interval:
    """Interval of a paired difference of proportions (Newcombe 1998b, method 10); independent pairs.

    The four counts are pairs right in both arms, in the first only, in the second only, in neither. Adds
    Wilson limits of the two arms in squares, corrected for their correlation.
    """
    n = both + gains + losses + neither
    first, second = (both + gains) / n, (both + losses) / n
    one, two = wilson(both + gains, n, level), wilson(both + losses, n, level)
    phi = _phi(both, gains, losses, neither)
    low = _square_and_add(first - one.low, two.high - second, phi)
    high = _square_and_add(one.high - first, second - two.low, phi)
    return Interval(first - second - low, first - second + high, level, "Newcombe")


def _phi(both: float, gains: float, losses: float, neither: float) -> float:
    """Correlation of the arms, with the continuity correction of Newcombe's method 10."""
    margins = (both + gains) * (losses + neither) * (both + losses) * (gains + neither)
    if margins == 0:
        return 0.0
    cross = both * neither - gains * losses
    half_n = (both + gains + losses + neither) / 2
    corrected = cross if cross < 0 else max(cross - half_n, 0.0)
    return float(corrected / np.sqrt(margins))


def _square_and_add(one: float, two: float, phi: float) -> float:
    return float(np.sqrt(max(one * one - 2 * phi * one * two + two * two, 0.0)))


def tango_statistic(
    gains: npt.ArrayLike, losses: npt.ArrayLike, n: npt.ArrayLike, difference: npt.ArrayLike
) -> FloatArray:
    """Score statistic of "the paired difference is `difference`" (Tango 1998); standard normal under it.

    Positive where the data lie above. Broadcasts; all counts of independent pairs.
    """
    b, c, size, d = (np.asarray(a, dtype=np.float64) for a in (gains, losses, n, difference))
    linear = -b - c + (2 * size - b + c) * d
    constant = -c * d * (1 - d)
    root = np.sqrt(np.maximum(linear * linear - 8 * size * constant, 0.0))
    lost_share = (root - linear) / (4 * size)
    variance = size * np.maximum(2 * lost_share + d * (1 - d), 0.0)
    distance = b - c - size * d
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = distance / np.sqrt(variance)
    return np.where(distance == 0, 0.0, statistic)


def tango_limits(
    gains: npt.ArrayLike, losses: npt.ArrayLike, n: npt.ArrayLike, quantile: float
) -> tuple[FloatArray, FloatArray]:
    """Limits where Tango's statistic is +-`quantile`, by bisection; broadcasts over counts."""
    b, c, size = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (gains, losses, n)))
    estimate = (b - c) / size
    ends = np.ones_like(estimate)
    target = np.stack([quantile * ends, -quantile * ends])
    below, above = np.stack([-ends, estimate]), np.stack([estimate, ends])
    for _ in range(BISECTIONS):  # the statistic falls as the hypothesised difference rises
        middle = (below + above) / 2
        higher = tango_statistic(b, c, size, middle) > target
        below, above = np.where(higher, middle, below), np.where(higher, above, middle)
    low, high = (below + above) / 2
    return low, high


def tango(gains: float, losses: float, n: float, level: float = 0.95, quantile: float | None = None) -> Interval:
    """Score interval of a paired difference of proportions (Tango 1998); n independent pairs.

    Never of zero width: without any discordant pair the limits are +-z2 / (n + z2).
    """
    low, high = tango_limits(gains, losses, n, normal_quantile(level) if quantile is None else quantile)
    return Interval(float(low), float(high), level, "Tango")
