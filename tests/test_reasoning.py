"""Thinking is kept apart from the answer, and stop strings do not reach into it."""

import pytest

from evalharness.reasoning import Reply, cut_at_stop, opens_reasoning, split_reasoning


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("#### 29", Reply("#### 29")),
        ("<think>5+24</think>\n\n#### 29", Reply("#### 29", "5+24")),
        ("5+24</think>#### 29", Reply("#### 29", "5+24")),  # the prompt held the opening tag
        ("<think>is it 29?", Reply("", "is it 29?", open=True)),
        ("So <think>is it 29?", Reply("So", "is it 29?", open=True)),
        ("<think>a</think> 29 <think>b", Reply("29", "ab", open=True)),
        ("<think>a</think> no <think>b</think> 29", Reply("29", "a</think> no <think>b")),
        ("[THINK]a[/THINK]29", Reply("29", "a")),
        ("", Reply("")),
    ],
)
def test_a_response_is_taken_apart(text: str, reply: Reply) -> None:
    assert split_reasoning(text) == reply


def test_a_prompt_can_open_the_reasoning() -> None:
    assert opens_reasoning("Question: 5+24?\n<think>\n")
    assert not opens_reasoning("Question: what does <think> mean?")
    assert split_reasoning("is it 29?", opened=True) == Reply("", "is it 29?", open=True)
    assert split_reasoning("5+24</think>29", opened=True) == Reply("29", "5+24")


def test_stop_strings_cut_the_answer() -> None:
    assert cut_at_stop("29\n\nQuestion: next", ("Question:", "\n\n")) == "29"
    assert cut_at_stop("29", ("Question:", "")) == "29"
