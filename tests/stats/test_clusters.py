"""Repeated answers: thirty documents stay thirty documents."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from statsmodels.stats.proportion import proportion_confint

from evalharness.stats.clusters import (
    PairedScores,
    accuracy_interval,
    cluster_t_interval,
    difference_interval,
    effective_counts,
    non_inferiority,
)
from evalharness.stats.intervals import tango, wilson

FOURS = np.arange(0, 120, 4)


def width(interval: object) -> float:
    return interval.high - interval.low  # type: ignore[attr-defined, no-any-return]


def test_alike_answers_widen_the_interval_to_that_of_the_documents() -> None:
    scores = np.repeat(np.array([1.0] * 18 + [0.0] * 12), 4)
    clustered = accuracy_interval(scores, FOURS, 0.95)
    naive_low, naive_high = proportion_confint(72, 120, method="wilson")
    assert width(clustered) > 1.9 * (naive_high - naive_low)
    assert width(clustered) == pytest.approx(width(wilson(18, 30)), rel=0.08)


def test_independent_answers_keep_their_number() -> None:
    rng = np.random.default_rng(0)
    scores = (rng.random(4000) < 0.5).astype(float)
    clustered = accuracy_interval(scores, np.arange(0, 4000, 4), 0.95)
    assert width(clustered) == pytest.approx(width(wilson(scores.sum(), 4000)), rel=0.1)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_constant_arm_is_as_sure_as_its_documents_allow(value: float) -> None:
    interval = accuracy_interval(np.full(120, value), FOURS, 0.95)
    assert interval.low <= value <= interval.high
    assert 0.1 < width(interval) < 0.14


def test_one_answer_a_document_is_plain_tango() -> None:
    arm, base = np.array([0, 1, 1, 0, 1, 1, 1.0]), np.array([1, 1, 0, 1, 1, 1, 1.0])
    assert difference_interval(PairedScores(arm, base, np.arange(7)), 0.9) == tango(1, 2, 7, 0.9)


def test_effective_counts_divide_by_the_design_effect() -> None:
    """Copies of one answer have a design effect of k (here 4, times the C/(C-1) of an estimated variance)."""
    arm, base = np.repeat([0.0, 0.0, 1.0] + [1.0] * 27, 4), np.repeat([1.0, 1.0, 0.0] + [1.0] * 27, 4)
    counts = effective_counts(PairedScores(arm, base, FOURS))
    assert counts.n == pytest.approx(30 * 29 / 30)
    assert (counts.losses, counts.gains) == pytest.approx((2 * 29 / 30, 29 / 30))
    assert counts.freedom == 29


def test_the_difference_of_noisy_repeats_agrees_with_a_t_interval() -> None:
    rng = np.random.default_rng(1)
    chance = rng.uniform(0.2, 0.8, 200)
    base, arm = ((rng.random((200, 4)) < chance[:, None]).astype(float) for _ in range(2))
    pairs = PairedScores(arm.ravel(), base.ravel(), np.arange(0, 800, 4))
    reference = cluster_t_interval((arm - base).mean(axis=1), 0.95)
    found = difference_interval(pairs, 0.95)
    assert reference is not None
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.004)


def test_the_cluster_t_interval_is_scipys_and_claims_no_certainty() -> None:
    means = np.random.default_rng(0).random(30)
    expected = ttest_1samp(means, 0).confidence_interval(0.95)
    found = cluster_t_interval(means, 0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert cluster_t_interval(np.zeros(30), 0.95) is None
    assert cluster_t_interval(np.array([0.3]), 0.95) is None


def test_non_inferiority_is_shown_exactly_when_the_limit_clears_the_margin() -> None:
    rng = np.random.default_rng(2)
    for repeats in (1, 4):
        for _ in range(40):
            base = (rng.random(40 * repeats) < 0.8).astype(float)
            arm = np.where(rng.random(len(base)) < 0.1, 1 - base, base)
            pairs = PairedScores(arm, base, np.arange(0, len(base), repeats))
            limit = difference_interval(pairs, 0.9).low
            assert (non_inferiority(pairs, 0.1) <= 0.05) == (limit >= -0.1)


def test_thirty_alike_documents_rule_out_a_loss_of_a_tenth_but_not_of_a_twentieth() -> None:
    same = np.ones(120)
    pairs = PairedScores(same, same, FOURS)
    assert non_inferiority(pairs, 0.10) < 0.05 < non_inferiority(pairs, 0.05)
