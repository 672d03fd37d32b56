"""avg@k and pass@k over repeats."""

from itertools import combinations

import pytest

from evalharness.scoring.metrics import avg_at_k, pass_at_k


def test_avg_at_k_weighs_every_problem_the_same() -> None:
    assert avg_at_k([[1, 1, 0, 0], [1, 1, 1, 1], [0]]) == pytest.approx(0.5)


def test_a_problem_without_scored_repeats_is_left_out() -> None:
    assert avg_at_k([[1.0], []]) == 1.0
    assert avg_at_k([[], []]) is None
    assert pass_at_k([[1.0]], 2) is None


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(k: int) -> None:
    repeats = [1, 0, 0, 1, 0]
    draws = list(combinations(repeats, k))
    assert pass_at_k([repeats], k) == pytest.approx(sum(map(max, draws)) / len(draws))


def test_pass_at_one_is_the_average() -> None:
    scores = [[1, 0, 0, 0], [1, 1, 0, 1]]
    assert pass_at_k(scores, 1) == pytest.approx(avg_at_k(scores) or -1)


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        pass_at_k([[1]], 0)
