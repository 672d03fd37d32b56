r"""The robust extractor: the number a response gives as its answer, however it is written.

lm-eval's own extractors decide the score; this one is recorded beside them, to tell a wrong answer from a right one
in another dress. The first rule that finds a number wins, and within a rule the last place that has one:

1. `\boxed{...}` or `\fbox{...}`, braces nested, with one number in it: `\boxed{070}`, `\boxed{\text{70}}`;
2. GSM8K's `#### 29`;
3. `<answer>70</answer>`;
4. a sentence that says so: "The final answer is 70", "Answer: **70**", "70 is our answer";
5. bold type in one of the last two lines, if it holds a number and little else: `**70**`;
6. the last sentence with a number in it: the first number after its last `=`, else its last one.

Rules 5 and 6 read only a response that ended by itself (`complete`); of one cut by the token limit the digits at the
very end are not read either, for more of them may have been to come. Rules 4 to 6 look at the last TAIL characters.
A filled box without one number is no answer, nor is a last sentence such as "this cannot be determined".
Time is linear in the length of the response.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from evalharness.scoring.numerals import NUMBER, canonical, last_value, only_value, plain, same_number, without_latex

__all__ = ["extract", "gold", "same_number"]

TAIL = 4000
MAX_BOX = 500
BOXES_TRIED = 8
SENTENCES_READ = 12

_BRACE = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?P<bare>-?[\d.,]{0,40}\d))|\\[{}]|[{}]")
_HASHES = re.compile(r"####([^\n]{1,200})")
_TAG = re.compile(r"<answer>([^<]{1,200})</answer>", re.IGNORECASE)
_CUE = re.compile(r"\banswer\b", re.IGNORECASE)
_IS_THE_ANSWER = re.compile(
    r"\W{0,6}\b(?:is|are)\s+(?:the|our|my|your)\s+(?:final\s+|correct\s+)?answer\b", re.IGNORECASE
)
# Words that may stand between "answer:" and the number itself, and `x =`, `m + n =`.
_FILLER = (
    r"(?:(?:therefore|thus|hence|so|then|approximately|about|exactly|just|simply|equal\s+to|indeed|now|clearly|is|be"
    r"|answer|final|the|a|an|total\s+of|number|value|[A-Za-z](?:\s*[-+]\s*[A-Za-z])*\s*=)[\s,:]*)*"
)
# Behind the word "answer": up to a verb and then any few words, or up to a colon and then filler only ("Answer: Let's
# compute 3+4" states nothing yet).
_STATED = re.compile(
    r"[^\n.:=\d]{0,80}?"
    rf"(?:\b(?:is|are|equals|be|becomes)\b[^\n.\d]{{0,60}}?|[:=\n]\s*{_FILLER})"
    r"(?P<value>[-+]?\.?\d)",
    re.IGNORECASE,
)
_HEDGED = re.compile(r"\b(?:not|between|from|least|most|than|integers?|form|range|digits?|modulo)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[.!?;](?:\s|$)|\n|\(|,?\s(?:because|since|as|which|where|so|not|rather|and)\b")
_PURE_FILLER = re.compile(rf"\W*{_FILLER}\W*", re.IGNORECASE)
_OPERATOR = re.compile(r"\s*(?:[*\u00d7\u00b7+^/]|-\s*\d)")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s")
_BOLD = re.compile(r"\*\*([^*\n]{1,60})\*\*")
_BOLD_VALUE = re.compile(rf"(?:[A-Za-z]\w{{0,8}}\s*=\s*)?\s*{NUMBER.pattern}\s*(?:[A-Za-z/]+\s*){{0,3}}[.!]?")
_REFUSAL = re.compile(
    r"\bno\s+(?:final\s+|valid\s+)?answer\b|\bnot\s+(?:enough|sufficient)\s+information|\bdon't\s+know\b"
    r"|\b(?:can\s?not|can't|unable\s+to|impossible\s+to)\s+(?:be\s+)?(?:determine|answer|solve|f[io]nd|compute|calculate|tell)",
    re.IGNORECASE,
)


def extract(response: str, *, complete: bool = True) -> str | None:
    """The answer of `response` as a canonical number (`70`, `-3`, `0.5`, `1/2`), None where it gives none.

    `complete` is False for a response that the token limit cut.
    """
    text = plain(response if complete else response.rstrip("0123456789.,"))
    for rule in (_boxed, _hashes, _tagged, _stated):
        found = rule(text)
        if found is not None:
            return found
    if not complete or next(_boxes(text), None) is not None:
        return None
    return _bold(text) or _last_sentence(text)


def gold(target: str) -> str | None:
    """The number a task's target stands for (`70`; worked steps that end `#### 29`), None if it is no number."""
    return _hashes(target) if "####" in target else only_value(plain(target))


def _boxed(text: str) -> str | None:
    for content in _boxes(text):
        value = only_value(content)
        if value is not None:
            return value
    return None


def _boxes(text: str) -> Iterator[str]:
    """Contents of the last few closed, filled boxes, the last one first."""
    opened: list[int | None] = []  # where the content of each open brace begins; None: not a box's brace
    closed: list[str] = []
    for match in _BRACE.finditer(text):
        brace = match.group()
        if match.group("bare"):
            closed.append(match.group("bare"))
        elif brace.endswith("{") and brace != r"\{":
            opened.append(match.end() if len(brace) > 1 else None)
        elif brace == "}" and opened:
            start = opened.pop()
            if start is not None and 0 < match.start() - start <= MAX_BOX:
                closed = [*closed[1 - BOXES_TRIED :], text[start : match.start()]]
    return reversed(closed[-BOXES_TRIED:])


def _hashes(text: str) -> str | None:
    return _last_of(_HASHES, text, _after_filler)


def _tagged(text: str) -> str | None:
    return _last_of(_TAG, text, lambda content: only_value(content) or last_value(content))


def _last_of(pattern: re.Pattern[str], text: str, read: Callable[[str], str | None]) -> str | None:
    """What `read` makes of the last match it can read; only the last few are tried."""
    for content in reversed([match.group(1) for match in pattern.finditer(text)][-BOXES_TRIED:]):
        value = read(content)
        if value is not None:
            return value
    return None


def _after_filler(content: str) -> str | None:
    """The value of `content` if nothing but filler stands in front of it ("Step 2" states no value)."""
    clean = without_latex(content)
    first = NUMBER.search(clean)
    if first is None or not _PURE_FILLER.fullmatch(clean[: first.start()]):
        return None
    return _clause_value(clean[first.start() :])


def _stated(text: str) -> str | None:
    tail = without_latex(text[-TAIL:])
    for cue in reversed(list(_CUE.finditer(tail))):
        value = _before_cue(tail[: cue.end()]) or _after_cue(tail[cue.end() : cue.end() + 200])
        if value is not None:
            return value
    return None


def _before_cue(text: str) -> str | None:
    """The 70 of "70 is the answer"."""
    window = text[-80:]
    verb = _IS_THE_ANSWER.search(window)
    found = list(NUMBER.finditer(window[: verb.start()] if verb else ""))
    return canonical(found[-1].group()) if found and verb and found[-1].end() == verb.start() else None


def _after_cue(window: str) -> str | None:
    """The 70 of "... is therefore: 70"; None for "is not 70", "is between 0 and 999", "is 7*10"."""
    said = _STATED.match(window)
    if said is None or _HEDGED.search(window[: said.start("value")]):
        return None
    return _clause_value(window[said.start("value") :])


def _clause_value(text: str) -> str | None:
    """The value of the clause that `text` begins with: behind its last `=`, else the number in front."""
    end = _CLAUSE_END.search(text)
    clause = text[: end.start()] if end else text
    if "=" in clause:
        return last_value(clause)
    first = NUMBER.match(clause)
    return canonical(first.group()) if first and not _OPERATOR.match(clause, first.end()) else None


def _bold(text: str) -> str | None:
    lines = [line for line in text[-TAIL:].splitlines() if line.strip()][-2:]
    for content in reversed(_BOLD.findall("\n".join(lines))):
        if _BOLD_VALUE.fullmatch(without_latex(content).strip()):
            return only_value(content)
    return None


def _last_sentence(text: str) -> str | None:
    sentences = [part for part in _SENTENCE_END.split(text[-TAIL:]) if part.strip()]
    for sentence in reversed(sentences[-SENTENCES_READ:]):
        if _REFUSAL.search(sentence) or (_CUE.search(sentence) and _HEDGED.search(sentence)):
            return None
        value = last_value(sentence)
        if value is not None:
            return value
    return None
