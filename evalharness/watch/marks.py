"""The answers of one (task, arm) as a string: one character a question, in the order of (document, repeat).

`0` to `9` and `a` are the score in tenths (`a` is 1), `-` an answer lost to infrastructure. Two runs that were
asked the same questions are compared character by character.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from evalharness.errors import EvalHarnessError
from evalharness.records import Cause, Sample
from evalharness.store import RunFolder

if TYPE_CHECKING:
    from evalharness.stats.clusters import PairedScores

PRIMARY: Final = "exact_match"
LOST: Final = "-"
DIGITS: Final = "0123456789a"


def read_marks(folder: RunFolder, task: str, arm: str) -> str:
    """The marks of stored samples; empty where they were pruned or cannot be read."""
    try:
        samples = folder.read_samples(task, arm)
    except (EvalHarnessError, OSError):
        return ""
    return "".join(_mark(sample) for sample in sorted(samples, key=lambda s: (s.doc_id, s.repeat)))


def _mark(sample: Sample) -> str:
    score = sample.scores.get(PRIMARY)
    if sample.cause is Cause.ERROR or score is None:
        return LOST
    return DIGITS[round(min(max(score, 0.0), 1.0) * 10)]


def pair_marks(now: str, before: str, repeats: int) -> PairedScores | None:
    """Scores of the questions that both answered; None where the strings are not of the same questions."""
    from evalharness.stats.clusters import PairedScores

    if not now or len(now) != len(before):
        return None
    both = [i for i, pair in enumerate(zip(now, before, strict=True)) if LOST not in pair]
    if not both:
        return None
    document = np.array(both) // repeats
    starts = np.flatnonzero(np.diff(document, prepend=-1))
    return PairedScores(_values(now, both), _values(before, both), starts)


def _values(marks: str, rows: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([DIGITS.index(marks[i]) / 10 for i in rows])
