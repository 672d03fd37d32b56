"""The canary's problems: right answers, disjoint splits, prompts of the promised length, lm-eval's formats."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from evalharness.canary.problems import (
    MAX_PROMPT,
    MIN_PROMPT,
    TASKS,
    contexts,
    documents,
    problems,
    render_prompt,
    split_of,
)
from evalharness.errors import UnknownName

STEP = re.compile(r"(\d+)([*+%-])(\d+)(?:\+(\d+))?=(\d+)")
FINAL = {"gsm8k_canary": re.compile(r"#### (\d+)"), "aime25_canary": re.compile(r"\\boxed\{(\d+)\}")}
OPERATIONS = {"*": int.__mul__, "+": int.__add__, "-": int.__sub__, "%": int.__mod__}


def work_out(line: str) -> tuple[int, int]:
    """(the line's value worked out anew, the value that it states)."""
    match = STEP.fullmatch(line)
    assert match, line
    left, symbol, right, plus, stated = match.groups()
    return OPERATIONS[symbol](int(left), int(right)) + int(plus or 0), int(stated)


def answer_from_text(question: str) -> int:
    """The answer from the question's wording alone, without the generator's steps."""
    numbers = [int(n) for n in re.findall(r"\d+", question)]
    if "in a box." in question:
        return replay_story(question)
    if "boxes with" in question:
        boxes, per_box, bags, per_bag = numbers
        return boxes * per_box + bags * per_bag
    if "dollars and buys" in question:
        purse, number, price, extra = numbers
        return purse - number * price - extra
    if "Every later term" in question:
        start, factor, shift, places = numbers
        for _ in range(places):
            start = start * factor + shift
        return start
    if "Find the value of the sum" in question:
        a, b, c, d = numbers
        return a * b + c * d
    a, b, c, hundred = numbers
    return a * b * c % hundred


def replay_story(question: str) -> int:
    """Walk through a story about a changing count, sentence by sentence."""
    count = 0
    for sentence in question.split(". ")[:-1]:
        (number,) = (int(n) for n in re.findall(r"\d+", sentence))
        if "in a box" in sentence:
            count = number
        elif "times" in sentence:
            count *= number
        elif re.search("to [A-Z]|loses|sold", sentence):
            count -= number
        else:
            count += number
    return count


@pytest.mark.parametrize("task", TASKS)
def test_every_step_and_answer_is_right(task: str) -> None:
    for problem, solution in islice(problems(task, "train", seed=5), 2000):
        *steps, last = solution.split("\n")
        for line in steps:
            value, stated = work_out(line)
            assert value == stated, (problem.question, line)
        assert FINAL[task].fullmatch(last).group(1) == str(problem.answer)  # type: ignore[union-attr]
        assert answer_from_text(problem.question) == problem.answer, problem.question


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_no_question(task: str) -> None:
    seen = {split: {p.question for p, _ in islice(problems(task, split), 20_000)} for split in ("train", "test")}
    assert not seen["train"] & seen["test"]
    assert all(split_of(question) == split for split, questions in seen.items() for question in questions)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_reach_beyond_the_first_block_of_64_tokens(task: str) -> None:
    for problem, solution in islice(problems(task, "test"), 2000):
        prompt = render_prompt(problem.question)
        assert MIN_PROMPT <= len(prompt) <= MAX_PROMPT
        assert re.search(r"\d", prompt[64:]), "a stale plan would see all numbers"
        assert len(solution) <= 48


@pytest.mark.parametrize("task", TASKS)
def test_documents_are_distinct_and_the_same_every_time(task: str) -> None:
    rows = documents(task, "test", 300)
    key = "question" if task == "gsm8k_canary" else "problem"
    assert len({row[key] for row in rows}) == 300
    assert rows[:50] == documents(task, "test", 50)
    assert rows != documents(task, "test", 300, seed=1)


def test_the_first_documents_are_pinned() -> None:
    # A change of generator changes every stored run's document hashes: it must be meant.
    first = {task: documents(task, "test", 1)[0] for task in TASKS}
    assert first == {
        "gsm8k_canary": {
            "question": "Hana has 12 toys in a box. Then Hana gives 11 of them to Pia. On Monday Hana buys 6 extra "
            "toys. By luck Hana soon has 4 times that many. How many toys does Hana have now?",
            "answer": "12-11=1\n1+6=7\n7*4=28\n#### 28",
        },
        "aime25_canary": {
            "problem": "Let J be the product of the integers 9 and 7, and let T be the product of the integers 14 and "
            "4. Find the value of the sum J + T.",
            "answer": "119",
            "solution": "9*7=63\n14*4=56\n63+56=119\n\\boxed{119}",
        },
    }


def test_answers_span_the_range_of_their_task() -> None:
    answers = {problem.answer for problem, _ in islice(problems("aime25_canary", "test"), 5000)}
    assert min(answers) == 0
    assert max(answers) <= 999
    assert len(answers) > 300


def test_worked_examples_come_before_the_question_as_lm_eval_puts_them() -> None:
    assert render_prompt("Why?", [("How?", "1+1=2\n#### 2")]) == (
        "Question: How?\nAnswer: 1+1=2\n#### 2\n\nQuestion: Why?\nAnswer:"
    )


@pytest.mark.parametrize("task", TASKS)
def test_fewshot_contexts_are_longer_than_512_tokens(task: str) -> None:
    for context in islice(contexts(task, "test", shots=4), 200):
        assert len("".join(ask + answer for ask, answer in context)) > 512


@pytest.mark.parametrize(("task", "split"), [("gsm8k_cannary", "test"), ("gsm8k_canary", "tset")])
def test_an_unknown_name_is_refused_with_the_nearest_choice(task: str, split: str) -> None:
    with pytest.raises(UnknownName, match="Did you mean"):
        next(problems(task, split))
