"""Seeded generators of the canary problems, and the one place that renders them as text.

Two tasks: `gsm8k_canary`, word problems of two or three steps in GSM8K's format, and `aime25_canary`, integer problems
with an answer in 0..999 in a box. Every prompt is 100 to 190 characters long and the numbers are spread over it: the
canary's tokenizer makes one token of a character, and a stale FlashMLA plan still serves a context of one block (64).

Train and test never share a document, by construction: the hash of a question decides which of the two it belongs to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from evalharness.errors import UnknownName

PROMPT_TEMPLATE = "Question: {question}\nAnswer:"
TARGET_DELIMITER = " "
FEWSHOT_DELIMITER = "\n\n"
MIN_PROMPT, MAX_PROMPT = 100, 190
MAX_SOLUTION = 56
TEST_SHARE = 0.25
SPLITS = ("train", "test")

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "Joy",
    "Kim", "Leo", "Mia", "Noah", "Olga", "Pia", "Ravi", "Sam", "Tess", "Uma",
)  # fmt: skip
OBJECTS = (
    "apples", "badges", "beads", "books", "cards", "coins", "eggs", "figs", "games", "hats",
    "jars", "keys", "kites", "maps", "pens", "plums", "rings", "shells", "stamps", "toys",
)  # fmt: skip

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its worked steps (one equation each, `12+7=19`) and its integer answer."""

    question: str
    steps: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class CanaryTask:
    """What makes a task: its kinds of problem, how an answer closes, and the row lm-eval reads."""

    kinds: tuple[Callable[[Random], Problem], ...]
    closing: str
    row: Callable[[Problem, str], dict[str, str]]

    def solution(self, problem: Problem) -> str:
        """Worked steps, one a line, then the answer in the task's own form."""
        return "\n".join((*problem.steps, self.closing.format(problem.answer)))


# --- gsm8k_canary -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Something that changes a count: a symbol, the sentences that tell it and the operands that it allows."""

    symbol: str
    sentences: tuple[str, ...]
    operands: Callable[[int], range]


_EVENTS = (
    Event(
        "+",
        (
            "Then {name} finds {n} more {thing}.",
            "A friend gives {name} {n} more.",
            "On Monday {name} buys {n} extra {thing}.",
        ),
        lambda _count: range(2, 20),
    ),
    Event(
        "-",
        (
            "Then {name} gives {n} of them to {friend}.",
            "On Friday {name} loses {n} {thing}.",
            "After that {n} of the {thing} get sold.",
        ),
        lambda count: range(2, min(count, 20)),
    ),
    Event(
        "*",
        (
            "In a year the number grows to {n} times as many.",
            "By luck {name} soon has {n} times that many.",
        ),
        lambda count: range(2, 5 if count < 40 else 3),
    ),
)
_APPLY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def _step(left: int, symbol: str, right: int) -> tuple[str, int]:
    """The line `left symbol right=value` and its value."""
    value = _APPLY[symbol](left, right)
    return f"{left}{symbol}{right}={value}", value


def _changing_count(rng: Random) -> Problem:
    """A count that two or three events change one after another."""
    name, friend = rng.sample(NAMES, 2)
    thing = rng.choice(OBJECTS)
    count = rng.randrange(5, 31)
    story, steps = [f"{name} has {count} {thing} in a box."], []
    for event in rng.sample(_EVENTS, rng.choice((2, 2, 3))):
        operand = rng.choice(event.operands(count))
        sentence = rng.choice(event.sentences)
        story.append(sentence.format(name=name, friend=friend, thing=thing, n=operand))
        line, count = _step(count, event.symbol, operand)
        steps.append(line)
    story.append(f"How many {thing} does {name} have now?")
    return Problem(" ".join(story), tuple(steps), count)


def _two_groups(rng: Random) -> Problem:
    """Two lots of boxes, added up."""
    name = rng.choice(NAMES)
    first, second = rng.sample(OBJECTS, 2)
    boxes, bags = rng.randrange(2, 10), rng.randrange(2, 10)
    per_box, per_bag = rng.randrange(2, 13), rng.randrange(2, 13)
    left, in_boxes = _step(boxes, "*", per_box)
    right, in_bags = _step(bags, "*", per_bag)
    total, answer = _step(in_boxes, "+", in_bags)
    question = (
        f"{name} packs {boxes} boxes with {per_box} {first} in each box, and also {bags} bags with {per_bag} {second} "
        f"in each bag. How many things does {name} pack?"
    )
    return Problem(question, (left, right, total), answer)


def _change_from_note(rng: Random) -> Problem:
    """What is left of a sum of money after two purchases."""
    name = rng.choice(NAMES)
    thing, other = rng.sample(OBJECTS, 2)
    number, price, extra = rng.randrange(2, 8), rng.randrange(2, 10), rng.randrange(2, 20)
    purse = rng.choice((90, 100, 120))
    cost, spent = _step(number, "*", price)
    total, both = _step(spent, "+", extra)
    rest, answer = _step(purse, "-", both)
    question = (
        f"{name} has {purse} dollars and buys {number} {thing} at a price of {price} dollars each. Then {name} pays "
        f"{extra} dollars for {other}. How many dollars are left?"
    )
    return Problem(question, (cost, total, rest), answer)


# --- aime25_canary ----------------------------------------------------------------------------------------------------


def _recurrence(rng: Random) -> Problem:
    """Three terms of x -> m x + c."""
    start, factor, shift = rng.randrange(2, 31), rng.choice((2, 3)), rng.randrange(1, 10)
    term, steps = start, []
    for _ in range(3):
        following = factor * term + shift
        steps.append(f"{term}*{factor}+{shift}={following}")
        term = following
    question = (
        f"The sequence {rng.choice(LETTERS)} of integers begins with the term {start}. Every later term is {factor} "
        f"times the term before it, plus {shift}. Find the term that comes 3 places after the first."
    )
    return Problem(question, tuple(steps), term)


def _sum_of_products(rng: Random) -> Problem:
    """The sum of two products, each of a number below 20 and a digit."""
    a, c = rng.randrange(2, 20), rng.randrange(2, 20)
    b, d = rng.randrange(2, 10), rng.randrange(2, 10)
    one, two = rng.sample(LETTERS, 2)
    left, first = _step(a, "*", b)
    right, second = _step(c, "*", d)
    total, answer = _step(first, "+", second)
    question = (
        f"Let {one} be the product of the integers {a} and {b}, and let {two} be the product of the integers {c} "
        f"and {d}. Find the value of the sum {one} + {two}."
    )
    return Problem(question, (left, right, total), answer)


def _last_digits(rng: Random) -> Problem:
    """The remainder of a product of three factors, divided by 100."""
    a, b, c = rng.randrange(2, 20), rng.randrange(2, 10), rng.randrange(2, 6)
    letter = rng.choice(LETTERS)
    first, ab = _step(a, "*", b)
    second, abc = _step(ab, "*", c)
    question = (
        f"Let {letter} be the product of the three positive integers {a}, {b} and {c}, in which no factor is left out. "
        f"Find the remainder when {letter} is divided by 100."
    )
    return Problem(question, (first, second, f"{abc}%100={abc % 100}"), abc % 100)


# --- the tasks --------------------------------------------------------------------------------------------------------


def _gsm8k_row(problem: Problem, solution: str) -> dict[str, str]:
    return {"question": problem.question, "answer": solution}


def _aime25_row(problem: Problem, solution: str) -> dict[str, str]:
    return {"problem": problem.question, "answer": str(problem.answer), "solution": solution}


TASKS: dict[str, CanaryTask] = {
    "gsm8k_canary": CanaryTask(
        (_changing_count, _changing_count, _two_groups, _change_from_note), "#### {}", _gsm8k_row
    ),
    "aime25_canary": CanaryTask((_recurrence, _sum_of_products, _last_digits), "\\boxed{{{}}}", _aime25_row),
}


def canary_task(name: str) -> CanaryTask:
    """The task of that name. Raises UnknownName, with the nearest choice, for any other."""
    if name not in TASKS:
        raise UnknownName("task", name, tuple(TASKS))
    return TASKS[name]


def split_of(question: str) -> str:
    """'train' or 'test', decided by the question's SHA-256 alone."""
    first = int.from_bytes(hashlib.sha256(question.encode()).digest()[:4], "big")
    return "test" if first < TEST_SHARE * 2**32 else "train"


def _ask(question: str, place: int = 0) -> str:
    """The text in front of an answer, for the question at that place of a context."""
    return (FEWSHOT_DELIMITER if place else "") + PROMPT_TEMPLATE.format(question=question)


def render_context(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Worked (question, solution) examples as (text in front of an answer, answer) parts; joined, a context."""
    return [(_ask(question, i), TARGET_DELIMITER + solution) for i, (question, solution) in enumerate(pairs)]


def render_prompt(question: str, examples: Sequence[tuple[str, str]] = ()) -> str:
    """The text a model is given: worked (question, solution) examples, then the question, as lm-eval puts them."""
    return "".join(ask + answer for ask, answer in render_context(examples)) + _ask(question, len(examples))


def _fits(problem: Problem, solution: str) -> bool:
    length = len(render_prompt(problem.question))
    return MIN_PROMPT <= length <= MAX_PROMPT and len(solution) <= MAX_SOLUTION and 0 <= problem.answer <= 999


def problems(task: str, split: str, seed: int | str = 0) -> Iterator[tuple[Problem, str]]:
    """An endless stream of (problem, solution text) of one split; the same for the same seed on every machine.

    Questions may repeat within a stream, never across splits. Raises UnknownName for an unknown task or split.
    """
    chosen = canary_task(task)
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    rng = Random(f"{task}/{split}/{seed}")
    while True:
        problem = rng.choice(chosen.kinds)(rng)
        solution = chosen.solution(problem)
        if _fits(problem, solution) and split_of(problem.question) == split:
            yield problem, solution


def documents(task: str, split: str = "test", n: int = 250, seed: int | str = 0) -> list[dict[str, str]]:
    """`n` different rows in the format of the task that the canary stands for.

    gsm8k_canary: question, answer (worked steps, then `#### N`). aime25_canary: problem, answer (`N`), solution.
    """
    row = canary_task(task).row
    unique: dict[str, dict[str, str]] = {}
    for problem, solution in problems(task, split, seed):
        if len(unique) == n:
            break
        unique.setdefault(problem.question, row(problem, solution))
    return list(unique.values())


def contexts(task: str, split: str, shots: int = 0, seed: int | str = 0) -> Iterator[list[tuple[str, str]]]:
    """An endless stream of rendered contexts: `shots` worked examples and one more (see `render_context`)."""
    stream = ((problem.question, solution) for problem, solution in problems(task, split, seed))
    while True:
        yield render_context(list(islice(stream, shots + 1)))
