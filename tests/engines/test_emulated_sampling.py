"""Sampling: greedy, seeded, nucleus."""

import numpy as np
import pytest

from evalharness.engines.emulated.sampling import choose, uniform

LOGITS = np.log(np.array([0.05, 0.5, 0.25, 0.2], np.float32))


def draws(temperature: float, top_p: float, n: int = 4000) -> np.ndarray:
    """Share of each token among draws at n positions."""
    chosen = [choose(LOGITS, temperature, top_p, seed=7, position=i) for i in range(n)]
    return np.bincount(chosen, minlength=4) / n


def test_temperature_zero_is_the_best_token() -> None:
    assert choose(LOGITS, 0.0, 0.1, seed=1, position=1) == 1


def test_draws_follow_the_distribution() -> None:
    assert draws(1.0, 1.0) == pytest.approx([0.05, 0.5, 0.25, 0.2], abs=0.03)


def test_a_low_temperature_sharpens() -> None:
    squares = np.array([0.05, 0.5, 0.25, 0.2]) ** 2
    assert draws(0.5, 1.0) == pytest.approx(squares / squares.sum(), abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert draws(1.0, 0.7) == pytest.approx([0, 2 / 3, 1 / 3, 0], abs=0.03)
    assert draws(1.0, 0.01).tolist() == [0, 1, 0, 0]


def test_the_number_depends_on_seed_and_position_only() -> None:
    numbers = {(seed, position): uniform(seed, position) for seed in range(30) for position in range(30)}
    assert len(set(numbers.values())) == 900
    assert all(0 <= number < 1 for number in numbers.values())
    assert uniform(3, 4) == numbers[3, 4]


def test_the_number_is_the_same_in_every_release() -> None:
    """Stored answers stay reproducible: this value must never change."""
    assert uniform(20261201, 100) == 0.9234943648788352
