"""What the gate claims about its own chances holds in simulation."""

import numpy as np
import pytest

from evalharness.stats.clusters import PairedScores, non_inferiority
from evalharness.stats.power import Design, detectable_loss, gate_rates
from evalharness.stats.significance import mcnemar, paired_test

RUNS = 2_000


def simulate(design: Design, margin: float, loss: float, seed: int) -> tuple[float, float]:
    """(share failed, share passed) of runs drawn answer by answer and judged by the tests themselves."""
    rng = np.random.default_rng(seed)
    n = design.documents * design.repeats
    gain_rate, loss_rate = design.flips(loss)
    failed = passed = 0
    for _ in range(RUNS):
        draw = rng.random(n)
        change = np.where(draw < gain_rate, 1.0, np.where(draw < gain_rate + loss_rate, -1.0, 0.0))
        base = np.where(change == 0, (rng.random(n) < 0.9).astype(float), (change < 0).astype(float))
        pairs = PairedScores(base + change, base, np.arange(0, n, design.repeats))
        if non_inferiority(pairs, margin) <= design.alpha:
            passed += 1
        elif paired_test(pairs, 0).p_worse < design.alpha:
            failed += 1
    return failed / RUNS, passed / RUNS


def error(rate: float) -> float:
    """Three binomial standard errors, for both sides of a comparison of simulations."""
    return 3 * float(np.sqrt(2 * max(rate * (1 - rate), 0.001) / RUNS))


@pytest.mark.parametrize(
    ("documents", "repeats", "discordance", "margin"),
    [(250, 1, 0.04, 0.05), (250, 1, 0.1, 0.05), (30, 4, 0.15, 0.1)],
)
def test_the_stated_rates_are_those_of_the_gate(
    documents: int, repeats: int, discordance: float, margin: float
) -> None:
    design = Design(documents, repeats, discordance, 0.05)
    stated = gate_rates(design, margin, 0)
    failed, passed = simulate(design, margin, 0.0, 1)
    missed = simulate(design, margin, stated.loss, 2)[1]
    assert failed == pytest.approx(stated.false_alarm, abs=error(stated.false_alarm))
    assert passed == pytest.approx(1 - stated.false_alarm - stated.withheld, abs=error(passed))
    assert missed == pytest.approx(stated.miss, abs=error(stated.miss))
    assert stated.false_alarm <= design.alpha


def test_a_loss_of_the_detectable_size_is_found_four_times_in_five() -> None:
    design = Design(250, 1, 0.04, 0.05)
    loss = detectable_loss(design)
    assert loss is not None
    rng = np.random.default_rng(0)
    gain_rate, loss_rate = design.flips(loss)
    draws = rng.multinomial(250, [gain_rate, loss_rate, 1 - gain_rate - loss_rate], RUNS)
    found = np.mean([mcnemar(gains, losses).p_worse < 0.05 for gains, losses, _ in draws])
    assert found == pytest.approx(0.8, abs=error(0.8))


def test_more_answers_find_smaller_losses() -> None:
    sizes = [30, 250, 1319, 2_000, 2_001, 1_000_000]
    found = [detectable_loss(Design(n, 1, 0.04, 0.05)) for n in sizes]
    assert all(loss is not None for loss in found)
    assert found == sorted(found, reverse=True)
    assert found[3] == pytest.approx(found[4], rel=0.1)


def test_a_handful_of_answers_finds_nothing() -> None:
    assert detectable_loss(Design(3, 1, 0.04, 0.05)) is None


def test_large_designs_are_rated_as_enumeration_rates_them() -> None:
    exact, limit = (gate_rates(Design(n, 1, 0.04, 0.05), 0.01, 0) for n in (2_000, 2_001))
    assert (exact.method, limit.method) == ("enumeration of gains and losses", "normal approximation")
    assert limit.false_alarm == pytest.approx(exact.false_alarm, abs=0.02)
    assert limit.withheld == pytest.approx(exact.withheld, abs=0.03)
