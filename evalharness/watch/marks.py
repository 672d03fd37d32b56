"""The answers of one (task, arm) as a string: one character a question, in the order of (document, repeat).

`0` to `9` and `a` are the score in tenths (`a` is 1), `-` an answer lost to infrastructure. Two runs that were
asked the same questions are compared character by character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evalharness.answers import read_table
from evalharness.errors import EvalHarnessError
from evalharness.store import RunFolder

FloatArray = npt.NDArray[np.float64]
PRIMARY: Final = "exact_match"
LOST: Final = "-"
DIGITS: Final = "0123456789a"


def read_marks(folder: RunFolder, task: str, arm: str) -> str:
    """The marks of stored samples; empty where they were pruned or cannot be read."""
    try:
        table = read_table(folder, task, arm)
    except (EvalHarnessError, OSError):
        return ""
    scores = table.scores.get(PRIMARY, np.full(len(table), np.nan))
    is_known = table.answered & ~np.isnan(scores)
    tenths = np.rint(np.clip(np.where(is_known, scores, 0.0), 0.0, 1.0) * 10).astype(int)
    order = np.lexsort((table.repeat, table.doc_id))
    return "".join(DIGITS[tenths[row]] if is_known[row] else LOST for row in order)


@dataclass(frozen=True, slots=True)
class PairedMarks:
    """Scores (n,) in 0..1 of the questions that two runs both answered, ordered by document; `starts` (documents,)
    is the first row of each document."""

    now: FloatArray
    before: FloatArray
    starts: npt.NDArray[np.int64]

    @property
    def difference(self) -> float:
        """Mean score now minus before."""
        return float((self.now - self.before).mean())


def pair_marks(now: str, before: str, repeats: int) -> PairedMarks | None:
    """Pair two runs' marks; None where the strings are not of the same questions."""
    if not now or len(now) != len(before):
        return None
    both = [i for i, pair in enumerate(zip(now, before, strict=True)) if LOST not in pair]
    if not both:
        return None
    starts = np.flatnonzero(np.diff(np.array(both) // max(repeats, 1), prepend=-1))
    return PairedMarks(_values(now, both), _values(before, both), starts)


def _values(marks: str, rows: list[int]) -> FloatArray:
    return np.array([DIGITS.index(marks[i]) / 10 for i in rows])
