"""Intervals against published worked examples and against independent computations."""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm
from statsmodels.stats.proportion import proportion_confint

from evalharness.stats.intervals import newcombe, tango, tango_limits, tango_statistic, wilson


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_limits_newcombe_published(right: int, n: int, low: float, high: float) -> None:
    """Newcombe 1998, Statistics in Medicine 17:857-872, table I, method 3."""
    interval = wilson(right, n)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@pytest.mark.parametrize(("right", "n"), [(0, 250), (250, 250), (3, 7), (1258, 1319), (1, 1_000_000)])
def test_wilson_agrees_with_statsmodels(right: int, n: int) -> None:
    interval = wilson(right, n, 0.9)
    assert (interval.low, interval.high) == pytest.approx(proportion_confint(right, n, 0.1, "wilson"), abs=1e-12)


def test_an_arm_at_nought_or_one_gets_an_interval_of_some_width() -> None:
    assert wilson(0, 30).low == 0.0
    assert wilson(0, 30).high > 0.1
    assert wilson(30, 30).high == 1.0
    assert wilson(30, 30).low < 0.9


def test_paired_intervals_give_the_limits_fagerland_published() -> None:
    """Airway hyper-responsiveness before and after transplantation (Bentur 2009), as worked in Fagerland,
    Lydersen and Laake 2014, Statistics in Medicine 33:2850-2875: 1 in both, 1 before only, 7 after only, 12
    in neither."""
    square_and_add, score = newcombe(1, 1, 7, 12), tango(1, 7, 21)
    assert (round(square_and_add.low, 3), round(square_and_add.high, 3)) == (-0.507, -0.026)
    assert (round(score.low, 3), round(score.high, 3)) == (-0.517, -0.026)


def test_tango_finds_agrestis_fall_in_approval() -> None:
    """Agresti, Categorical Data Analysis, table 10.1: 794, 150, 86, 570 of 1600; Wald gives (-0.06, -0.02)."""
    interval = tango(86, 150, 1600)
    assert (round(interval.low, 2), round(interval.high, 2)) == (-0.06, -0.02)


@pytest.mark.parametrize(
    ("gains", "losses", "n"), [(40, 20, 160), (0, 1, 44), (5, 0, 30), (1, 7, 21), (300, 280, 1319)]
)
def test_tango_inverts_a_score_test_whose_likelihood_is_maximised_numerically(gains: int, losses: int, n: int) -> None:
    """The reference maximises the constrained trinomial likelihood by search instead of by formula."""
    target = norm.ppf(0.975)

    def statistic(difference: float) -> float:
        least, most = max(0.0, -difference), (1 - difference) / 2

        def minus_log_likelihood(lost: float) -> float:
            cells = np.array([lost + difference, lost, 1 - 2 * lost - difference])
            counts = np.array([gains, losses, n - gains - losses])
            seen = counts > 0
            return float(-(counts[seen] * np.log(np.maximum(cells[seen], 1e-300))).sum())

        found = minimize_scalar(minus_log_likelihood, bounds=(least, most), method="bounded", options={"xatol": 1e-12})
        lost = found.x
        return float((gains - losses - n * difference) / np.sqrt(n * (2 * lost + difference - difference**2)))

    estimate = (gains - losses) / n
    low = brentq(lambda d: statistic(d) - target, -0.999, estimate - 1e-9)
    high = brentq(lambda d: statistic(d) + target, estimate + 1e-9, 0.999)
    interval = tango(gains, losses, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=2e-5)


def test_tango_without_discordant_pairs_is_honest() -> None:
    z2 = norm.ppf(0.975) ** 2
    interval = tango(0, 0, 250)
    assert interval.high == pytest.approx(z2 / (250 + z2))
    assert interval.low == pytest.approx(-interval.high)


def test_tango_reaches_the_ends_of_its_range() -> None:
    everything_lost = tango(0, 30, 30)
    assert everything_lost.low == pytest.approx(-1.0)
    z2 = norm.ppf(0.975) ** 2
    assert everything_lost.high == pytest.approx(-(30 - z2) / (30 + z2))


def test_swapping_the_arms_mirrors_the_interval() -> None:
    for one, two in ((tango(3, 11, 60), tango(11, 3, 60)), (newcombe(30, 3, 11, 16), newcombe(30, 11, 3, 16))):
        assert (one.low, one.high) == pytest.approx((-two.high, -two.low))


def test_the_limits_solve_their_own_equation_for_whole_arrays() -> None:
    gains, losses = np.meshgrid(np.arange(0, 12), np.arange(0, 12))
    low, high = tango_limits(gains, losses, 40, 1.645)
    inner = (gains + losses > 0) & (np.abs(low) < 1) & (np.abs(high) < 1)
    assert tango_statistic(gains, losses, 40, low)[inner] == pytest.approx(1.645, abs=1e-6)
    assert tango_statistic(gains, losses, 40, high)[inner] == pytest.approx(-1.645, abs=1e-6)
