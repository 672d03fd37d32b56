"""Stopping early: valid however often one looks, and worth it."""

import numpy as np
import pytest

from evalharness.stats.sequential import Progress, capital, p_above, should_stop

RUNS = 2_000
ALPHA = 0.05


def draws(rng: np.random.Generator, documents: int, gain: float, loss: float, repeats: int = 1) -> np.ndarray:
    """Mean differences (RUNS, documents) whose answers rise with `gain` and fall with `loss`."""
    draw = rng.random((RUNS, documents, repeats))
    return np.where(draw < gain, 1.0, np.where(draw < gain + loss, -1.0, 0.0)).mean(axis=2)


@pytest.mark.parametrize(("gain", "loss", "repeats"), [(0.0, 0.05, 1), (0.1, 0.15, 1), (0.02, 0.07, 4)])
def test_looking_after_every_document_keeps_the_level(gain: float, loss: float, repeats: int) -> None:
    """Arms worse by exactly the margin, looked at 300 times each: at most alpha are ever decided either way."""
    runs = draws(np.random.default_rng(0), 300, gain, loss, repeats)
    limit = -np.log(ALPHA)
    above = np.mean([capital(run, -0.05).max() >= limit for run in runs])
    below = np.mean([capital(-run, 0.05).max() >= limit for run in runs])
    allowed = ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / RUNS)
    assert above <= allowed
    assert below <= allowed


def test_a_test_for_a_fixed_n_would_not_keep_it() -> None:
    """The same looks with an ordinary z test raise far more false alarms: this is what the rule guards against."""
    runs = draws(np.random.default_rng(1), 300, 0.1, 0.1)[:500]
    n = np.arange(1, 301)
    z = runs.cumsum(axis=1) / np.sqrt(np.maximum((runs**2).cumsum(axis=1), 1))
    assert (z[:, n > 20] > 1.645).any(axis=1).mean() > 3 * ALPHA


def test_a_broken_arm_is_decided_after_a_few_documents() -> None:
    broken = -np.ones(250)
    found = next(d for n in range(1, 251) if (d := should_stop(Progress(broken[:n], 250, 0.05))).stop)
    assert found.non_inferior is False
    assert found.saved > 235
    assert "worse by 0.050, decided after" in found.reason


def test_a_sound_arm_is_decided_before_the_end() -> None:
    same = np.zeros(250)
    found = next(d for n in range(1, 251) if (d := should_stop(Progress(same[:n], 250, 0.05))).stop)
    assert found.non_inferior is True
    assert found.saved > 100


def test_an_arm_at_the_margin_goes_on() -> None:
    differences = np.tile([0.0] * 19 + [-1.0], 12)
    found = should_stop(Progress(differences, 250, 0.05))
    assert (found.stop, found.non_inferior, found.saved) == (False, None, 0)


def test_nothing_is_decided_by_nothing() -> None:
    assert p_above(np.zeros(0), 0.0) == 1.0
    assert not should_stop(Progress(np.zeros(0), 250, 0.05)).stop


def test_deciding_on_the_last_document_saves_nothing() -> None:
    found = should_stop(Progress(-np.ones(30), 30, 0.05))
    assert (found.stop, found.non_inferior, found.saved) == (False, False, 0)


def test_no_difference_can_ruin_the_gambler() -> None:
    for threshold in (-0.5, -0.05, 0.0, 0.05, 0.5):
        assert np.isfinite(capital(np.array([-1.0, 1.0] * 50), threshold)).all()
