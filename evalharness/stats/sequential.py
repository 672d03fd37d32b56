"""Ending an arm when its answer is decided, without paying for having looked.

The differences of documents (arm minus reference, in -1..1) are bet upon: a gambler who starts with 1 and
stakes a share of it on "the mean lies above t" gains in expectation only if it does. Were it not so, the
capital would ever reach 1 / alpha with a chance of at most alpha, whenever and however often one looks
(Ville 1939; betting on bounded means: Waudby-Smith and Ramdas 2024). The stake is a mixture over STAKES.
Assumes documents in an order fixed beforehand, each an independent draw; nothing about their distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import logsumexp

from evalharness.stats.intervals import FloatArray

STAKES: Final = np.geomspace(0.02, 0.95, 24)  # shares of the largest stake that cannot ruin


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an arm is: `differences` (documents,) of mean scores, arm minus reference.

    They are a complete beginning of the planned order: a document that finished before an earlier one must
    wait, for short answers finish first and are not like the others. `planned` counts documents.
    """

    differences: FloatArray
    planned: int
    margin: float
    alpha: float = 0.05


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to stop, on which side of -margin the arm lies (None: not decided), and what that saves."""

    stop: bool
    non_inferior: bool | None
    p_value: float
    saved: int
    reason: str


def should_stop(progress: Progress) -> Decision:
    """Stop as soon as the mean difference is known to lie above or below -margin.

    At most a share alpha of arms that are worse by the margin is ever called non-inferior, and the reverse,
    however often this is asked.
    """
    done = len(progress.differences)
    saved = max(progress.planned - done, 0)
    above = p_above(progress.differences, -progress.margin)
    below = p_above(-progress.differences, progress.margin)
    p = min(above, below)
    if p > progress.alpha:
        return Decision(False, None, p, 0, f"undecided after {done} of {progress.planned} documents")
    word = "not worse" if above <= below else "worse"
    reason = f"{word} by {progress.margin:.3f}, decided after {done} of {progress.planned} documents"
    return Decision(saved > 0, above <= below, p, saved, reason)


def p_above(differences: FloatArray, threshold: float) -> float:
    """Anytime-valid p value of "the mean is at most `threshold`": one over the highest capital so far."""
    if not len(differences):
        return 1.0
    return min(1.0, float(np.exp(-capital(differences, threshold).max())))


def capital(differences: FloatArray, threshold: float) -> FloatArray:
    """Logarithm of the capital after each document, (documents,); starts from 0."""
    stakes = STAKES / (1 + threshold)  # a difference of -1 then costs at most 95 %
    growth = np.cumsum(np.log1p(np.outer(differences - threshold, stakes)), axis=0)
    total: FloatArray = logsumexp(growth, axis=1) - np.log(len(STAKES))
    return total
