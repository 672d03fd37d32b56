"""The robust extractor reads an answer in any usual dress, and in linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.scoring.answers import extract, gold, same_number

SEVENTY = [
    r"\boxed{070}",
    r"\boxed{70.0}",
    r"\boxed{\text{70}}",
    "The final answer is 70",
    "**70**",
    r"$5 \ldots $x=70$",
    r"\boxed{70.}",
    r"\boxed{x = 70}",
    r"\boxed{m+n=70}",
    r"\boxed{m+n \equiv 70 \pmod{1000}}",
    r"\boxed{\dfrac{140}{2}}",
    r"\boxed{70^\circ}",
    r"\boxed{70^{\circ}}",
    r"\boxed{70\,\text{degrees}}",
    r"\boxed{70\text{ cm}^2}",
    r"\boxed{\mathbf{70}}",
    r"\boxed{\boxed{70}}",
    r"\boxed{\{70\}}",
    r"\boxed{\,70\,}",
    r"\boxed{\rm 70}",
    r"\boxed{\phantom{0}70}",
    r"\boxed{\text{The answer is } 70}",
    '{"answer": 70}',
    "The remainder is 70 when it is divided by 1000.",
    r"\boxed 70",
    r"\fbox{70}",
    r"First \boxed{5}, and finally \boxed{70}.",
    r"I will put it in \boxed{}. The answer is 70.",
    r"$\boxed{70",  # never closed, but the response ended
    "<answer> 70 </answer>",
    "answer: **70**.",
    "ANSWER: 70",
    "**Final Answer**\n\n70",
    "## Answer\n\n$70$",
    "The final answer is:\n\n\\[ 70 \\]",
    "The answer is therefore: 70",
    "It is therefore: 70",
    "The answer, then, is 70.",
    "The answer is $m+n = 5+65 = \\textbf{70}$.",
    "The correct answer is (C) 70",
    "The answer to problem 5 is 70",
    "The answer is 70, not 71.",
    "The answer is 70 degrees, since 35*2 = 70 and 3 is odd.",
    "70 is the answer.",
    "So **70** is our final answer",
    "Thus $m+n = 70$.",
    "x=70\n\nHope this helps!",
    "答案是７０。",
    "The answer is \U0001d7d5\U0001d7ce",
    "_70_",
]
TWENTY_NINE = [
    "#### 29",
    "#### $29.00",
    "#### 29 dollars",
    "#### 5 + 24 = 29",
    "$29.00",
    "$29.00.",
    "so 29 dollars...",
    "She has $29.",
    "€29",
    "29%",
    "So, the answer is $\\$29.00$.",
    "#### Step 2: add\nSo 5+24=29",
    "Answer: Let's compute 3+4=7. So she has 29 dollars left.",
    "He needs 29 more.",
    "She cannot buy more than 29.",
    "The answer is **29 dollars**.",
]


@pytest.mark.parametrize("text", SEVENTY)
def test_seventy_in_every_dress(text: str) -> None:
    assert extract(text) == "70"


@pytest.mark.parametrize("text", TWENTY_NINE)
def test_twenty_nine_in_every_dress(text: str) -> None:
    assert extract(text) == "29"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234", "1234"),
        (r"\boxed{1{,}234}", "1234"),
        (r"\boxed{1\,234}", "1234"),
        (r"\boxed{1\!234}", "1234"),
        ("The answer is 1\u202f234", "1234"),
        ("Answer: 1,234,567.50", "1234567.5"),
        ("the answer is \u221229", "-29"),
        ("The answer is: $-29$", "-29"),
        (r"\boxed{-\frac{1}{2}}", "-1/2"),
        ("-$29.00", "-29"),
        ("10 - 3 = 7", "7"),
        (".5", "0.5"),
        (r"\boxed{\frac12}", "1/2"),
        ("0", "0"),
    ],
)
def test_signs_thousands_and_fractions(text: str, number: str) -> None:
    assert extract(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "I give up.",
        r"\boxed{\text{no solution}}",
        r"\boxed{2^{10}}",
        r"\boxed{70\pi}",
        r"\boxed{70 \text{ or } 71}",
        r"\boxed{7 \cdot 10}",
        "The answer is between 0 and 999.",
        "the answer is not 70",
        "There are 5 cases, but the answer cannot be determined.",
        "The 3 equations have 5 unknowns: x can't be determined.",
        "Not enough information about the 5 friends.",
        "1/0",
        "7" * 5000,
    ],
)
def test_no_answer_is_none(text: str) -> None:
    assert extract(text) is None


def test_a_box_wins_over_what_follows_it() -> None:
    assert extract(r"\boxed{70} (this took 3 steps; the answer is 5)") == "70"


def test_a_cut_response_needs_a_statement_and_a_whole_number() -> None:
    assert extract("16-3=13, then 13*2=26 and", complete=False) is None
    assert extract("The answer is 7", complete=False) is None
    assert extract("#### 29\n\nNow", complete=False) == "29"
    assert extract(r"\boxed{70} because", complete=False) == "70"


@pytest.mark.parametrize(
    ("target", "number"),
    [("70", "70"), ("070", "70"), ("5+24\n#### 29", "29"), ("#### 1,234", "1234"), ("Paris", None)],
)
def test_gold_is_the_number_of_the_target(target: str, number: str | None) -> None:
    assert gold(target) == number


def test_numbers_are_compared_as_numbers() -> None:
    assert same_number("0.5", "1/2")
    assert not same_number("70", "7")
    assert not same_number(None, None)


@settings(deadline=None)  # other work on the machine must not fail a test
@given(
    st.integers(-(10**9), 10**9), st.sampled_from([r"\boxed{%s}", "#### %s", "The answer is %s.", "x = %s", "**%s**"])
)
def test_any_integer_is_read_back(number: int, form: str) -> None:
    assert extract(form % number) == str(number)
    assert extract(form % f"{number:,}") == str(number)


@settings(deadline=None)  # other work on the machine must not fail a test
@given(st.text(st.sampled_from(list("\\boxed{}[]()$#*_^=-+.,/0123456789 \nanswer is:<>"))))
def test_no_text_breaks_it(text: str) -> None:
    extract(text)
    extract(text, complete=False)


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "9 ",
        "\\boxed{",
        "{",
        "1,",
        ",111",
        "answer is ",
        "#### ",
        "**a",
        "\\frac{",
        "\\text{",
        "\\boxed1,",
        "=",
        "-",
    ],
)
def test_a_megabyte_takes_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    extract(text)
    extract(text, complete=False)
    assert time.process_time() - began < 5  # under 0.5 s where it was written; a quadratic scan takes minutes
