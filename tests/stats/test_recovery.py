"""Recovery and its bootstrap interval."""

import numpy as np
import pytest

from evalharness.stats.recovery import recovery, recovery_interval


def test_recovery_is_defined_when_stock_answers_nothing() -> None:
    eager, stock = np.array([1.0, 1, 1, 0]), np.zeros(4)
    assert recovery(eager, stock, eager) == 1.0
    assert recovery(eager, stock, np.array([1.0, 0, 0, 0])) == pytest.approx(1 / 3)


def test_recovery_of_no_loss_is_undefined() -> None:
    same = np.ones(4)
    assert recovery(same, same, same) is None
    assert recovery_interval(same, same, same, np.arange(4), 0.95, 0) is None


def test_the_interval_is_that_of_a_bootstrap_which_draws_documents() -> None:
    """The reference resamples document by document; the two share no code and no random numbers."""
    rng = np.random.default_rng(4)
    documents, repeats = 60, 4
    eager, patched = ((rng.random((documents, repeats)) < 0.8).astype(float) for _ in range(2))
    stock = (rng.random((documents, repeats)) < 0.2).astype(float)
    picks = rng.integers(0, documents, (20_000, documents))
    e, s, p = (arm.mean(axis=1)[picks].mean(axis=1) for arm in (eager, stock, patched))
    expected = np.quantile((p - s) / (e - s), [0.025, 0.975])
    starts = np.arange(0, documents * repeats, repeats)
    found = recovery_interval(eager.ravel(), stock.ravel(), patched.ravel(), starts, 0.95, 0)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.01)


def test_the_interval_depends_on_the_seed_alone() -> None:
    rng = np.random.default_rng(5)
    eager, stock, patched = ((rng.random(100) < p).astype(float) for p in (0.9, 0.1, 0.85))
    one, again, other = (recovery_interval(eager, stock, patched, np.arange(100), 0.95, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_patched_that_equals_eager_everywhere_is_not_certain_to_recover_all() -> None:
    eager = np.array([1.0] * 240 + [0.0] * 10)
    found = recovery_interval(eager, np.zeros(250), eager, np.arange(250), 0.95, 0)
    assert found is not None
    assert 0.97 < found.low < 1.0 < found.high < 1.03


def test_a_loss_that_resampling_can_undo_has_no_finite_interval() -> None:
    eager, stock = np.array([1.0, 1, 1, 0, 0]), np.array([1.0, 1, 0, 0, 0])
    assert recovery_interval(eager, stock, eager, np.arange(5), 0.95, 0) is None
