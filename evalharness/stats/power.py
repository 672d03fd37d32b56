"""What the gate does by chance at a given n: its false alarms, its misses, and the loss it can find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from scipy.special import bdtr, gammaln, ndtr, ndtri, xlog1py, xlogy

from evalharness.records import GateRates
from evalharness.stats.clusters import effective_n, quantile
from evalharness.stats.intervals import FloatArray, tango_statistic
from evalharness.stats.significance import sign_flip

LARGEST_EXACT: Final = 2_000  # documents up to which every pair of counts is enumerated
SIMULATED: Final = 2_000
POWER: Final = 0.8
REACH: Final = 8.0  # standard deviations of each count that are enumerated: all but 1e-15


@dataclass(frozen=True, slots=True)
class Design:
    """One task of a run: answers, and the share of them that noise alone flips."""

    documents: int
    repeats: int
    discordance: float
    alpha: float

    def flips(self, loss: float) -> tuple[float, float]:
        """(gain, loss) rates of an answer when accuracy truly falls by `loss`."""
        return self.discordance / 2, min(self.discordance / 2 + loss, 1 - self.discordance / 2)


Rates = Callable[[Design, float, float, int], tuple[float, float]]


@lru_cache(maxsize=64)
def gate_rates(design: Design, margin: float, seed: int) -> GateRates:
    """Chances of FAIL, and of PASS, of the comparison with the reference arm alone.

    FAIL: the paired test finds a loss and non-inferiority is not shown. PASS: non-inferiority is shown. The
    miss rate is that of a true loss of twice the margin.
    """
    loss = min(2 * margin, 1 - design.discordance)
    rates, method = _rates_of(design)
    fail, passed = rates(design, margin, 0.0, seed)
    missed = rates(design, margin, loss, seed)[1]
    return GateRates(
        documents=design.documents,
        repeats=design.repeats,
        margin=margin,
        discordance=design.discordance,
        false_alarm=fail,
        withheld=max(0.0, 1 - fail - passed),
        loss=loss,
        miss=missed,
        method=method,
    )


@lru_cache(maxsize=64)
def detectable_loss(design: Design) -> float | None:
    """Smallest true loss of accuracy the paired test finds with 80 % power at this n; None if none is."""
    if design.repeats > 1 or design.documents > LARGEST_EXACT:
        return _normal_detectable(design)
    if _exact_power(design, 1.0) < POWER:
        return None
    low, high = 0.0, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if _exact_power(design, middle) < POWER else (low, middle)
    return high


def _normal_detectable(design: Design) -> float | None:
    """Where (t_alpha + t_power) standard errors meet the loss, whose flips add to the noise."""
    answers = design.documents * design.repeats
    freedom = design.documents - 1 if design.repeats > 1 else None
    reject, power = quantile(1 - 2 * design.alpha, freedom), quantile(2 * POWER - 1, freedom)
    loss = 0.0
    for _ in range(50):
        flips = sum(design.flips(loss))
        loss = (reject * np.sqrt(flips) + power * np.sqrt(max(flips - loss**2, 0.0))) / np.sqrt(answers)
    return float(loss) if loss < 1 - design.discordance else None


def _rates_of(design: Design) -> tuple[Rates, str]:
    if design.documents > LARGEST_EXACT:
        return _normal_rates, "normal approximation"
    if design.repeats > 1:
        return _simulated_rates, f"{SIMULATED} simulated runs, independent answers"
    return _exact_rates, "enumeration of gains and losses"


def _exact_power(design: Design, loss: float) -> float:
    gains, losses, weight = _grid(design.documents, *design.flips(loss))
    discordant = (gains + losses).astype(np.int64)
    return float(weight[bdtr(gains, discordant, 0.5) < design.alpha].sum())


def _exact_rates(design: Design, margin: float, loss: float, _seed: int) -> tuple[float, float]:
    gains, losses, weight = _grid(design.documents, *design.flips(loss))
    discordant = (gains + losses).astype(np.int64)
    passed = tango_statistic(gains, losses, design.documents, -margin) >= ndtri(1 - design.alpha)
    failed = ~passed & (bdtr(gains, discordant, 0.5) < design.alpha)
    return float(weight[failed].sum()), float(weight[passed].sum())


def _grid(n: int, gain: float, loss: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Counts of gains and losses with their trinomial probability, (cells,) each."""
    b, c = (a.ravel() for a in np.meshgrid(_range(n, gain), _range(n, loss), indexing="ij"))
    b, c = b[b + c <= n], c[b + c <= n]
    rest = n - b - c
    log_choices = gammaln(n + 1) - gammaln(b + 1) - gammaln(c + 1) - gammaln(rest + 1)
    weight = np.exp(log_choices + xlogy(b, gain) + xlogy(c, loss) + xlog1py(rest, -min(gain + loss, 1.0)))
    return b, c, weight


def _range(n: int, rate: float) -> FloatArray:
    spread = REACH * np.sqrt(n * rate * (1 - rate)) + REACH
    return np.arange(max(0, int(n * rate - spread)), min(n, int(n * rate + spread) + 1) + 1, dtype=np.float64)


def _normal_rates(design: Design, margin: float, loss: float, _seed: int) -> tuple[float, float]:
    answers = design.documents * design.repeats
    flips = sum(design.flips(loss))
    error = np.sqrt(max(flips - loss**2, 0.0) / answers)
    z = float(ndtri(1 - design.alpha))
    pass_above = _least_passing(answers, flips, margin, z)
    fail_below = min(-z * np.sqrt(flips / answers), pass_above)
    return float(ndtr((fail_below + loss) / error)), float(ndtr(-(pass_above + loss) / error))


def _least_passing(answers: int, flips: float, margin: float, z: float) -> float:
    """Difference from which Tango's test shows non-inferiority when a share `flips` of the answers flips."""
    low, high = -min(margin, flips), flips
    for _ in range(50):
        middle = (low + high) / 2
        gains, losses = answers * (flips + middle) / 2, answers * (flips - middle) / 2
        shown = bool(tango_statistic(gains, losses, answers, -margin) >= z)
        low, high = (low, middle) if shown else (middle, high)
    return high


def _simulated_rates(design: Design, margin: float, loss: float, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    gain, fall = design.flips(loss)
    shape = (SIMULATED, design.documents)
    gains = rng.binomial(design.repeats, gain, shape)
    losses = rng.binomial(design.repeats - gains, fall / (1 - gain))
    passed = _non_inferior(gains, losses, design, margin)
    sums = (gains - losses).astype(np.float64)
    suspects = ~passed & (sums.sum(axis=1) < 0)
    failed = sum(sign_flip(row, seed).p_worse < design.alpha for row in sums[suspects])
    return failed / SIMULATED, float(passed.mean())


def _non_inferior(gains: np.ndarray, losses: np.ndarray, design: Design, margin: float) -> np.ndarray:
    """Whether each simulated run (runs, documents) shows non-inferiority, as `clusters.non_inferiority`."""
    answers = design.documents * design.repeats
    b, c = gains.sum(axis=1), losses.sum(axis=1)
    mean = (b - c) / answers
    residuals = gains - losses - design.repeats * mean[:, None]
    effective = effective_n(residuals, b + c - answers * mean**2, answers)
    scale = effective / answers
    statistic = tango_statistic(b * scale, c * scale, effective, -margin)
    return statistic >= quantile(1 - 2 * design.alpha, max(design.documents - 1, 1))
