"""Degeneration of a response, and the one word on why a sample scored as it did.

Flags are findings about the text; they never change a score. A cause is the single reason recorded with a sample.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from evalharness.records import Cause

LOOP = "loop"
EMPTY = "empty"
TRUNCATED = "truncated"
DRIFT = "alphabet_drift"
OPEN_REASONING = "open_reasoning"
DISAGREEMENT = "extractors_disagree"

# A period that comes this often, over at least so many characters, at the end of a text is a loop.
LOOP_RULES = ((6, 24), (3, 60))
TAIL = 8192
WINDOW = 600
MAX_COMPRESSED = 0.15  # of its size; gsm8k's worked solutions reach 0.34 at least, a list that only counts up 0.32

DRIFT_SHARE = 0.2
DRIFT_LETTERS = 8
BROKEN_SHARE = 0.02
FAMILIAR = frozenset({"LATIN", "GREEK"})  # mathematics writes in both
BROKEN = "\ufffd"


@dataclass(frozen=True, slots=True)
class Loop:
    """A text's end repeats its last `period` characters `repeats` times, `length` characters in all."""

    period: int
    repeats: int
    length: int


def find_flags(answer: str, reasoning: str, prompt: str, finish_reason: str) -> tuple[str, ...]:
    """Every finding about one response, in the order of the constants above."""
    whole = reasoning + answer
    findings = {
        LOOP: is_repetitive(whole),
        EMPTY: is_empty(answer),
        TRUNCATED: finish_reason == "length",
        DRIFT: has_drifted(whole, prompt),
    }
    return tuple(name for name, found in findings.items() if found)


def is_empty(text: str) -> bool:
    """Whether nothing in `text` would show: white space, control and format characters only."""
    return all(char.isspace() or unicodedata.category(char) in {"Cc", "Cf"} for char in set(text))


def is_repetitive(text: str) -> bool:
    """Whether `text` ends in a loop, or a stretch of WINDOW characters says next to nothing new.

    The second is measured with zlib, in windows that overlap by half, so that a loop the model left again and one
    with a counter in it are found as well. Time is linear.
    """
    if find_loop(text) is not None:
        return True
    data = text.encode("utf-8", "replace")
    starts = range(0, len(data) - WINDOW + 1, WINDOW // 2)
    return any(len(zlib.compress(data[i : i + WINDOW], 6)) < MAX_COMPRESSED * WINDOW for i in starts)


def find_loop(text: str) -> Loop | None:
    """The loop that the last TAIL characters end in, by LOOP_RULES; the longest where several fit.

    Uses the failure function of Knuth, Morris and Pratt 1977 on the reversed text: its value at n gives the shortest
    period of the last n characters. Linear time.
    """
    tail = text[-TAIL:][::-1]
    border = [0] * len(tail)
    best: Loop | None = None
    for n in range(2, len(tail) + 1):
        k = border[n - 2]
        while k and tail[k] != tail[n - 1]:
            k = border[k - 1]
        border[n - 1] = k + (tail[k] == tail[n - 1])
        period = n - border[n - 1]
        if any(n >= times * period and n >= length for times, length in LOOP_RULES):
            best = Loop(period, n // period, n)
    return best


def has_drifted(text: str, prompt: str) -> bool:
    """Whether letters left the scripts of the prompt, or bytes stopped being characters.

    True when at least DRIFT_LETTERS letters, and DRIFT_SHARE of all, are of a script that neither the prompt nor
    mathematics uses, or when BROKEN_SHARE of the characters are replacement characters.
    """
    letters = Counter(char for char in text if char.isalpha() and not char.isascii())
    known = FAMILIAR | {_script(char) for char in set(prompt) if char.isalpha()}
    strange = sum(count for char, count in letters.items() if _script(char) not in known)
    total = sum(map(str.isalpha, text))
    broken = text.count(BROKEN)
    return (strange >= DRIFT_LETTERS and strange >= DRIFT_SHARE * total) or broken > BROKEN_SHARE * len(text)


def attribute(
    finish_reason: str, *, correct: bool, extracted: bool, flags: Collection[str], reasoning: bool = False
) -> Cause:
    """The one reason for a sample's score; the first that holds.

    1. ERROR: lost to infrastructure, whatever text came; it has no score and is never counted as wrong.
    2. TRUNCATED: the token limit cut it inside its reasoning; a number in the trace earns nothing.
    3. CORRECT: scored right. A right answer that the limit cut later on stays right, and keeps its flag.
    4. EMPTY: nothing to read; if the limit came between reasoning and answer, TRUNCATED.
    5. LOOP: it repeats itself; said before TRUNCATED, for a loop is what runs into the limit.
    6. TRUNCATED: cut by the token limit.
    7. NOT_EXTRACTED: it ended by itself, and neither extractor found an answer in it.
    8. WRONG: it gave an answer, not the target's.
    """
    cut = finish_reason == "length"
    reasons = (
        (finish_reason == "error", Cause.ERROR),
        (cut and (OPEN_REASONING in flags), Cause.TRUNCATED),
        (correct, Cause.CORRECT),
        (EMPTY in flags, Cause.TRUNCATED if cut and reasoning else Cause.EMPTY),
        (LOOP in flags, Cause.LOOP),
        (cut, Cause.TRUNCATED),
        (not extracted, Cause.NOT_EXTRACTED),
    )
    return next((cause for holds, cause in reasons if holds), Cause.WRONG)


def _script(char: str) -> str:
    """`LATIN`, `CJK`, ...: the first word of the character's name."""
    return unicodedata.name(char, "UNKNOWN").split()[0].split("-")[0]
