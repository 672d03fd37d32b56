"""pass@k, and the counts a published figure can come from."""

import numpy as np
import pytest

from evalharness.stats.repeats import fitting_counts, pass_at_k


def test_pass_at_k_asks_for_one_right_answer() -> None:
    assert pass_at_k(np.array([0, 0, 1, 0, 0, 0, 1, 1.0]), np.array([0, 4, 6])).tolist() == [1.0, 0.0, 1.0]


def test_the_published_aime_figure_is_an_average_over_repeats() -> None:
    assert fitting_counts(0.942, 30) == [(113, 120), (226, 240)]
    assert (28, 30) in fitting_counts(0.933, 30)


@pytest.mark.parametrize(("figure", "counts"), [(0.0, (0, 1319)), (1.0, (1319, 1319)), (0.954, (1258, 1319))])
def test_figures_of_a_single_pass_are_found(figure: float, counts: tuple[int, int]) -> None:
    assert counts in fitting_counts(figure, 1319)


def test_every_count_found_rounds_to_the_figure() -> None:
    for figure in (0.169, 0.5, 0.043):
        assert all(round(right / asked, 3) == figure for right, asked in fitting_counts(figure, 30, most_repeats=32))
