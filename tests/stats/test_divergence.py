"""The first token at which two arms part."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalharness.stats.divergence import SAME, first_divergence
from evalharness.table import Tokens

ROW = st.lists(st.integers(0, 2), max_size=40)


def slow(one: list[int], two: list[int]) -> int:
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return i
    return SAME if len(one) == len(two) else min(len(one), len(two))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(ROW, ROW, st.booleans()), max_size=12))
def test_it_is_the_index_a_plain_loop_finds(rows: list[tuple[list[int], list[int], bool]]) -> None:
    pairs = [(one, one + two if same else two) for one, two, same in rows]
    found = first_divergence(Tokens.of([one for one, _ in pairs]), Tokens.of([two for _, two in pairs]))
    assert found.tolist() == [slow(one, two) for one, two in pairs]


def test_long_answers_that_part_late_and_rows_in_any_order() -> None:
    one = [list(range(1000)), [7] * 33, []]
    two = [[*range(999), 0], [7] * 33, [1]]
    order = np.array([2, 0, 1])
    found = first_divergence(Tokens.of(one).take(order), Tokens.of(two).take(order))
    assert found.tolist() == [0, 999, SAME]


def test_more_answers_than_one_chunk() -> None:
    n = 20_000
    one = Tokens.of([[1, 2, 3]] * n)
    two = Tokens.of([[1, 2, 4 if i % 7 == 0 else 3] for i in range(n)])
    assert (first_divergence(one, two) == np.where(np.arange(n) % 7 == 0, 2, SAME)).all()
