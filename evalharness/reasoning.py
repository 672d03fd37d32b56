"""Keeps a model's thinking apart from its answer, so that nothing is scored, or stopped, inside a trace.

Three rules:
1. The answer is what follows the last closing tag. A trace that opens after it is thinking again.
2. Without a closing tag, everything from the opening tag on is thinking and the trace is *open*: the model
   never came to its answer. A prompt that ends with an opening tag opens the trace itself.
3. Stop strings cut the answer only. A blank line or "Question:" inside a trace ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

THINK_TAGS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response taken apart. `open` says that the trace was never closed, so there is no answer behind it."""

    answer: str
    reasoning: str = ""
    open: bool = False


def split_reasoning(text: str, *, opened: bool = False) -> Reply:
    """Take `text` apart; `opened` says that the prompt already opened the trace."""
    closing, width = max(((text.rfind(close), len(close)) for _, close in THINK_TAGS), key=lambda found: found[0])
    if closing >= 0:
        before, after = text[:closing], text[closing + width :]
        start = _opening(after)
        if start is None:
            return Reply(after.lstrip(), _untagged(before))
        return Reply(after[: start[0]].strip(), _untagged(before) + after[start[1] :], open=True)
    start = _opening(text)
    if start is not None:
        return Reply(text[: start[0]].strip(), text[start[1] :], open=True)
    return Reply("", text, open=True) if opened else Reply(text)


def opens_reasoning(prompt: str) -> bool:
    """Whether the response to `prompt` begins inside a trace."""
    return prompt.rstrip().endswith(tuple(tag for tag, _ in THINK_TAGS))


def cut_at_stop(answer: str, stop: Iterable[str]) -> str:
    """The answer up to the first stop string, which is not part of it. Linear for each stop string."""
    found = [place for place in (answer.find(text) for text in stop if text) if place >= 0]
    return answer[: min(found)] if found else answer


def _opening(text: str) -> tuple[int, int] | None:
    """Start and end of the first opening tag."""
    found = [(text.find(tag), len(tag)) for tag, _ in THINK_TAGS]
    starts = [(place, place + width) for place, width in found if place >= 0]
    return min(starts) if starts else None


def _untagged(trace: str) -> str:
    """A trace without the tag that opens it."""
    start = _opening(trace)
    return trace if start is None else trace[: start[0]] + trace[start[1] :]
