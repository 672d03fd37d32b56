"""The CUSUM finds what moved, keeps still about noise, and the paired test sees what an average hides."""

import numpy as np
import pytest

from evalharness.watch.drift import against_good, watch
from evalharness.watch.marks import pair_marks


def noisy(level: float, nights: int, sigma: float = 0.006, seed: int = 3) -> list[float]:
    return list(np.random.default_rng(seed).normal(level, sigma, nights))


def sizes(values: list[float]) -> list[int]:
    return [250] * len(values)


def test_a_collapse_is_found_in_the_night_it_happens() -> None:
    values = [*noisy(0.95, 40), 0.17]
    (shift,) = watch(values, sizes(values)).shifts
    assert (shift.start, shift.found, shift.direction, shift.end) == (40, 40, "fell", None)


@pytest.mark.parametrize("seed", range(5))
def test_a_shift_of_two_sigmas_is_found_and_dated(seed: int) -> None:
    values = noisy(0.95, 60, seed=seed) + noisy(0.938, 40, seed=seed + 100)
    shift = watch(values, sizes(values)).shifts[0]
    assert shift.direction == "fell"
    assert abs(shift.start - 60) <= 4
    assert shift.found <= 80


def test_a_rise_is_found_too_and_ends_when_the_level_is_back() -> None:
    values = noisy(0.2, 30) + noisy(0.95, 5, seed=4) + noisy(0.2, 10, seed=5)
    (shift,) = watch(values, sizes(values)).shifts
    assert (shift.start, shift.direction, shift.end) == (30, "rose", 35)


def test_years_of_noise_raise_hardly_an_alarm() -> None:
    alarms = sum(len(watch(v, sizes(v)).shifts) for seed in range(10) for v in [noisy(0.9, 400, seed=seed)])
    assert alarms <= 3


def test_one_noisy_night_lies_outside_the_limits_and_is_no_shift() -> None:
    values = noisy(0.95, 40)
    values[30] = 0.925
    found = watch(values, sizes(values))
    assert not found.shifts
    limits = found.limits[30]
    assert limits is not None
    assert values[30] < limits.low


def test_the_noise_floor_widens_the_limits() -> None:
    values = noisy(0.95, 40, sigma=0.001)
    tight, wide = watch(values, sizes(values)).limits[-1], watch(values, sizes(values), floor=0.03).limits[-1]
    assert tight is not None
    assert wide is not None
    assert wide.low == pytest.approx(wide.centre - 0.03)
    assert wide.low < tight.low


def test_nights_without_a_figure_and_the_first_nights_have_no_limits() -> None:
    values: list[float | None] = [*noisy(0.9, 17), None]
    limits = watch(values, [250] * 17 + [0]).limits
    assert limits[14] is None
    assert limits[15] is not None
    assert limits[17] is None


def test_paired_against_the_last_good_run() -> None:
    good = "a" * 240 + "0" * 10
    pairs = pair_marks("0" * 20 + good[20:], good, 1)
    assert pairs is not None
    found = against_good(pairs)
    assert found.is_loss
    assert found.difference == pytest.approx(-20 / 250)
    assert found.p == pytest.approx(2**-20)  # twenty discordant pairs, all one way


def test_pairing_leaves_out_lost_answers_and_refuses_other_questions() -> None:
    pairs = pair_marks("a0-a", "aa0-", 2)
    assert pairs is not None
    assert len(pairs.now) == 2
    assert list(pairs.starts) == [0]
    assert pair_marks("aaa", "aaaa", 1) is None
    assert pair_marks("", "", 1) is None
    assert pair_marks("--", "aa", 1) is None
