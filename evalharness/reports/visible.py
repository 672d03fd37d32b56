"""Model text made safe to look at: every character shows, and a megabyte of one letter takes a line."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

Kind = Literal["text", "note", "mark"]
RUN: Final = 48  # equal characters in a row shown before the rest is counted
BEFORE, AFTER, END = 220, 420, 160  # characters shown before the first difference, after it, and at the very end
MARKED: Final = 12
HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LONG_RUN = re.compile(rf"(.)\1{{{RUN},}}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an excerpt: `text` the model wrote, a `note` of ours, or the `mark` on the first difference."""

    kind: Kind
    text: str


Excerpt = tuple[Piece, ...]


def excerpts(one: str, two: str) -> tuple[Excerpt, Excerpt, int | None]:
    """Both texts around their first difference, and the index of the character where they part (None: alike)."""
    at = _first_difference(one, two)
    where = len(one) if at is None else at
    return _around(one, where, at is not None), _around(two, where, at is not None), at


def visible(text: str) -> Excerpt:
    """`text` as pieces in which no character acts: controls, direction marks and the like are named in notes."""
    pieces = [piece for part in _counted(text) for piece in _named(part)]
    joined = groupby(pieces, key=lambda piece: piece.kind)
    return tuple(Piece(kind, "".join(piece.text for piece in group)) for kind, group in joined)


def flat(excerpt: Excerpt) -> str:
    """An excerpt as one string, the marked piece between angle quotes."""
    return "".join(f"»{piece.text}«" if piece.kind == "mark" else piece.text for piece in excerpt)


def _first_difference(one: str, two: str) -> int | None:
    """Halving is faster than a loop over a megabyte: equal slices compare at memory speed."""
    if one == two:
        return None
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == two[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _around(text: str, at: int, differs: bool) -> Excerpt:
    start = max(0, at - BEFORE)
    end = at + (_word(text, at) if differs else 0)
    pieces = [_left_out(start, "the same in both answers") if differs else _left_out(start, "left out")]
    pieces += visible(text[start:at])
    if differs:
        pieces.append(_marked(text[at:end]))
    rest = text[end:]
    if len(rest) > AFTER + END:
        pieces += visible(rest[:AFTER])
        pieces.append(_left_out(len(rest) - AFTER - END, "left out"))
        rest = rest[-END:]
    return tuple(piece for piece in [*pieces, *visible(rest)] if piece.text)


def _word(text: str, at: int) -> int:
    """Length of the word that begins at `at`, at least one character."""
    found = re.compile(r"\s*[^\s]*").match(text, at, at + MARKED)
    return max(1, found.end() - at) if found else 1


def _marked(text: str) -> Piece:
    shown = "".join(_drawn(piece.text) for piece in visible(text))
    return Piece("mark", shown or "[the answer ends here]")


def _drawn(text: str) -> str:
    """White space alone would mark nothing to see."""
    return text if text.strip() else text.replace(" ", "\u2423").replace("\n", "\u21b5\n").replace("\t", "\u21e5")


def _left_out(count: int, why: str) -> Piece:
    return Piece("note", f"[{count:,} characters {why}] " if count else "")


def _counted(text: str) -> Iterator[Piece]:
    """Long runs of one character cut to RUN of it and a count."""
    end = 0
    for run in _LONG_RUN.finditer(text):
        yield Piece("text", text[end : run.start() + RUN])
        yield Piece("note", f" [the same character {len(run[0]) - RUN:,} more times] ")
        end = run.end()
    yield Piece("text", text[end:])


def _named(piece: Piece) -> Iterator[Piece]:
    if piece.kind == "note":
        yield piece
        return
    for hidden, group in groupby(piece.text, key=_is_hidden):
        if hidden:
            yield from (Piece("note", _name(char)) for char in group)
        else:
            yield Piece("text", "".join(group))


def _is_hidden(char: str) -> bool:
    return char not in "\n\t" and unicodedata.category(char) in HIDDEN


def _name(char: str) -> str:
    """`␛` for a control character that has a picture, `<U+202E>` in angle brackets for any other."""
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"
