"""Model text made safe to look at."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.reports.visible import HIDDEN, excerpts, flat, visible


def test_answers_part_at_the_first_difference_and_the_word_there_is_marked() -> None:
    one, two, at = excerpts("12+5=17\nso 17", "12+5=19\nso 19")
    assert at == 6
    assert flat(one) == "12+5=1»7«\nso 17"
    assert flat(two) == "12+5=1»9«\nso 19"


def test_an_answer_that_goes_on_where_the_other_ends() -> None:
    one, two, at = excerpts("#### 5", "#### 5 and more")
    assert at == 6
    assert flat(one) == "#### 5»[the answer ends here]«"
    assert flat(two) == "#### 5» and« more"


def test_white_space_that_differs_can_be_seen() -> None:
    one, two, _ = excerpts("a b", "a\nb")
    assert flat(one) == "a» b«"
    assert flat(two) == "a»\nb«"


def test_like_answers_are_not_marked() -> None:
    one, two, at = excerpts("same", "same")
    assert (flat(one), flat(two), at) == ("same", "same", None)


def test_a_long_answer_keeps_its_surroundings_and_its_end() -> None:
    shared, end = "word " * 400, " tail" * 400 + " #### 7"
    one, _, at = excerpts(f"{shared}7{end}", f"{shared}8{end}")
    assert at == 2000
    text = flat(one)
    assert text.startswith("[1,780 characters the same in both answers] ")
    assert "characters left out]" in text
    assert text.endswith("#### 7")
    assert len(text) < 1200


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\x00b\x7f", "a␀b␡"),
        ("\u202eabc", "⟨U+202E⟩abc"),
        ("line\nnext\tcell", "line\nnext\tcell"),
        ("\ud800", "⟨U+D800⟩"),
        ("x" * 100, "x" * 48 + " [the same character 52 more times] "),
    ],
)
def test_what_would_act_is_named(raw: str, shown: str) -> None:
    assert flat(visible(raw)) == shown


@given(st.text(alphabet=st.characters(), max_size=400))
def test_no_character_that_acts_is_left(text: str) -> None:
    shown = flat(visible(text))
    assert all(c in "\n\t" or unicodedata.category(c) not in HIDDEN for c in shown)
    shown.encode()


@given(st.text(max_size=60), st.text(max_size=60))
def test_the_difference_is_where_a_loop_finds_it(one: str, two: str) -> None:
    _, _, at = excerpts(one, two)
    pairs = zip([*one, None], [*two, None], strict=False)
    assert at == (None if one == two else next(i for i, (a, b) in enumerate(pairs) if a != b))
