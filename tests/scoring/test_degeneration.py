"""Loops, emptiness and drift are found; every sample gets the one cause that explains its score."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.records import Cause
from evalharness.scoring.degeneration import (
    DRIFT,
    EMPTY,
    LOOP,
    OPEN_REASONING,
    TRUNCATED,
    attribute,
    find_flags,
    find_loop,
    has_drifted,
    is_empty,
    is_repetitive,
)

PROSE = (
    "Natalia sold 48/2 = 24 clips in May. Altogether she sold 48+24 = 72 clips in April and May. The question asks for "
    "both months, so nothing is left to subtract, and no friend bought twice.\n#### 72"
)


@pytest.mark.parametrize(
    "text",
    [
        "12" + "+12" * 10,
        "0" * 30,
        "the " * 8,
        "So the answer is " * 4,
        PROSE + " I think so." * 20,
        "\n" * 40,
        "a loop in " * 200 + PROSE,  # left again
        PROSE * 4,
    ],
)
def test_a_loop_is_found(text: str) -> None:
    assert is_repetitive(text)


@pytest.mark.parametrize("text", ["", "5+5=10\n10+5=15\n#### 15", PROSE, "1000000", "ha ha ha", "3 * 3 * 3 = 27"])
def test_an_ordinary_answer_is_no_loop(text: str) -> None:
    assert not is_repetitive(text)


def test_a_counted_up_list_is_no_loop() -> None:
    assert not is_repetitive("".join(f"Step {i}: compute {i}+1={i + 1}.\n" for i in range(1, 100)))


@settings(deadline=None)  # other work on the machine must not fail a test
@given(
    st.text(min_size=2, max_size=40).filter(lambda unit: len(set(unit)) > 1), st.integers(7, 30), st.text(max_size=5)
)
def test_what_repeats_long_enough_is_a_loop_whatever_comes_before(unit: str, times: int, before: str) -> None:
    text = before + unit * max(times, 60 // len(unit) + 1)
    loop = find_loop(text)
    assert loop is not None
    assert loop.period <= len(unit)


def test_a_megabyte_takes_linear_time() -> None:
    began = time.process_time()
    for text in ("a" * 1_000_000, "ab" * 500_000, "a" * 499_999 + "b" + "a" * 500_000):
        find_flags(text, "", "question", "length")
    assert time.process_time() - began < 5  # 0.2 s where it was written


@pytest.mark.parametrize(("text", "empty"), [("", True), (" \n\t", True), ("\x00\u200b", True), ("0", False)])
def test_emptiness(text: str, empty: bool) -> None:
    assert is_empty(text) is empty


@pytest.mark.parametrize(
    ("text", "drifted"),
    [
        ("Привет, мир, как дела", True),
        ("The sum 你好世界你好世界你好 is", True),
        ("\ufffd\ufffd abc", True),
        ("Let \u03b1 + \u03b2 = \u03c0, so \u03a3 = 70", False),
        ("#### 29", False),
        ("one word 你好 in a long English explanation of the whole problem", False),
    ],
)
def test_drift_from_the_prompts_alphabet(text: str, drifted: bool) -> None:
    assert has_drifted(text, "Question: how many?") is drifted


def test_answering_in_the_prompts_script_is_no_drift() -> None:
    assert not has_drifted("Ответ равен семидесяти", "Вопрос: сколько?")


def test_flags_name_all_findings() -> None:
    assert find_flags("12+" * 20, "", "q", "length") == (LOOP, TRUNCATED)
    assert find_flags("", "", "q", "stop") == (EMPTY,)
    assert find_flags("你好世界你好世界你好", "", "q", "stop") == (DRIFT,)


CASES = [
    ("error", {"correct": True, "extracted": True, "flags": ()}, Cause.ERROR),
    ("length", {"correct": True, "extracted": True, "flags": (OPEN_REASONING,)}, Cause.TRUNCATED),
    ("length", {"correct": True, "extracted": True, "flags": (TRUNCATED,)}, Cause.CORRECT),
    ("stop", {"correct": False, "extracted": False, "flags": (EMPTY,)}, Cause.EMPTY),
    ("length", {"correct": False, "extracted": False, "flags": (EMPTY,), "reasoning": True}, Cause.TRUNCATED),
    ("length", {"correct": False, "extracted": True, "flags": (LOOP, TRUNCATED)}, Cause.LOOP),
    ("length", {"correct": False, "extracted": True, "flags": (TRUNCATED,)}, Cause.TRUNCATED),
    ("stop", {"correct": False, "extracted": False, "flags": ()}, Cause.NOT_EXTRACTED),
    ("stop", {"correct": False, "extracted": True, "flags": ()}, Cause.WRONG),
]


@pytest.mark.parametrize(("finish_reason", "findings", "cause"), CASES)
def test_the_first_reason_that_holds_is_the_cause(
    finish_reason: str, findings: dict[str, object], cause: Cause
) -> None:
    assert attribute(finish_reason, **findings) is cause  # type: ignore[arg-type]
