"""Tests of paired answers against enumeration, scipy, statsmodels and published examples."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportions_ztest

from evalharness.stats.clusters import PairedScores
from evalharness.stats.significance import holm, mcnemar, paired_test, sign_flip, unpaired_z


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (1, 7), (86, 150), (0, 900), (40, 41)])
def test_exact_mcnemar_agrees_with_statsmodels(gains: int, losses: int) -> None:
    expected = reference_mcnemar([[0, gains], [losses, 0]], exact=True).pvalue
    assert mcnemar(gains, losses).p_two_sided == pytest.approx(expected, rel=1e-9)


def test_exact_mcnemar_gives_published_p_values() -> None:
    """Bentur 2009 in Fagerland 2014: 0.070. Agresti's approval ratings: z squared 17.36, p below 0.0001."""
    assert round(mcnemar(1, 7).p_two_sided, 3) == 0.070
    assert mcnemar(86, 150).p_two_sided < 0.0001


def test_the_sides_are_told_apart() -> None:
    assert mcnemar(0, 10).p_worse == pytest.approx(2**-10)
    assert mcnemar(0, 10).p_better == 1.0
    assert sign_flip(np.array([-1.0] * 10), 0).p_worse == pytest.approx(2**-10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=10))
def test_sign_flips_are_counted_exactly(differences: list[int]) -> None:
    d = np.array(differences, dtype=float)
    sums = np.array([np.dot(signs, np.abs(d)) for signs in product((-1, 1), repeat=len(d))])
    test = sign_flip(d, 0)
    assert test.p_worse == pytest.approx((sums <= d.sum() + 1e-9).mean())
    assert test.p_better == pytest.approx((sums >= d.sum() - 1e-9).mean())


def test_sign_flip_of_fractions_agrees_with_scipy() -> None:
    d = np.array([0.25, -0.5, 1 / 3, 0.75, -0.25, 1.0, 2 / 3, -1 / 3])
    expected = permutation_test((d,), np.sum, permutation_type="samples", alternative="less", n_resamples=np.inf)
    test = sign_flip(d, 0)
    assert test.method == "exact sign flip"
    assert test.p_worse == pytest.approx(expected.pvalue)


def test_one_answer_a_document_makes_the_sign_flip_a_mcnemar_test() -> None:
    d = np.array([1.0] * 9 + [-1.0] * 21 + [0.0] * 100)
    assert sign_flip(d, 0).p_worse == pytest.approx(mcnemar(9, 21).p_worse, rel=1e-9)


def test_drawn_and_limiting_sign_flips_agree_with_the_exact_one() -> None:
    rng = np.random.default_rng(3)
    d = rng.integers(-4, 5, 300).astype(float) - (rng.random(300) < 0.1)
    exact = sign_flip(d, 0)
    drawn = sign_flip(d * 0.0997, 0)
    limit = sign_flip(np.concatenate([d, 1e-9 * (1 + np.arange(3000.0))]), 0)
    assert (exact.method, drawn.method.split(",")[0], limit.method) == (
        "exact sign flip",
        "sign flip",
        "sign flip, normal limit",
    )
    assert drawn.p_worse == pytest.approx(exact.p_worse, abs=0.006)
    assert limit.p_worse == pytest.approx(exact.p_worse, abs=0.01)


def test_draws_depend_on_the_seed_alone() -> None:
    d = np.random.default_rng(0).normal(size=40)
    assert sign_flip(d, 5) == sign_flip(d, 5)
    assert sign_flip(d, 5) != sign_flip(d, 6)


def test_repeated_answers_are_clusters_and_not_trials() -> None:
    """Thirty documents, four alike answers each: the p value is that of thirty, not of a hundred and twenty."""
    arm, base = np.repeat([0.0] * 8 + [1.0] * 22, 4), np.repeat([1.0] * 6 + [0.0] * 2 + [1.0] * 22, 4)
    repeated = paired_test(PairedScores(arm, base, np.arange(0, 120, 4)), 0)
    single = paired_test(PairedScores(arm[::4], base[::4], np.arange(30)), 0)
    assert (repeated.method, single.method) == ("exact sign flip", "exact McNemar")
    assert repeated.p_worse == pytest.approx(single.p_worse)


@pytest.mark.parametrize("seed", range(8))
def test_holm_agrees_with_statsmodels(seed: int) -> None:
    p_values = np.random.default_rng(seed).random(seed + 1) ** 3
    assert holm(p_values.tolist()) == pytest.approx(list(multipletests(p_values, method="holm")[1]))


def test_holm_keeps_what_was_not_tested_out_of_the_count() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])


def test_the_unpaired_test_is_the_textbook_one_and_weaker_than_the_paired() -> None:
    base = np.array([1.0] * 900 + [0.0] * 100)
    arm = base.copy()
    arm[:20] = 0.0
    expected = proportions_ztest([880, 900], [1000, 1000])[1]
    assert unpaired_z(arm, base) == pytest.approx(expected)
    assert mcnemar(0, 20).p_two_sided < 1e-4 < 0.1 < expected
    assert unpaired_z(np.ones(5), np.ones(5)) is None
