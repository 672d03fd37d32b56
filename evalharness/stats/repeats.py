"""Figures of repeated answers, and what a published figure can be made of."""

from __future__ import annotations

import numpy as np

from evalharness.stats.clusters import IntArray
from evalharness.stats.intervals import FloatArray


def pass_at_k(scores: FloatArray, starts: IntArray) -> FloatArray:
    """1.0 for each document with a right answer among its repeats, (documents,)."""
    best: FloatArray = (np.maximum.reduceat(scores, starts) == 1.0).astype(np.float64)
    return best


def fitting_counts(figure: float, documents: int, decimals: int = 3, most_repeats: int = 8) -> list[tuple[int, int]]:
    """(right, asked) with asked = documents x 1..most_repeats that rounds to `figure` at `decimals`.

    `fitting_counts(0.942, 30)` is [(113, 120), (226, 240)]: no single pass over 30 problems scores 0.942.
    """
    half = 0.5 * 10.0**-decimals
    found = []
    for repeats in range(1, most_repeats + 1):
        asked = documents * repeats
        right = round(figure * asked)
        if abs(right / asked - figure) <= half + 1e-12:
            found.append((right, asked))
    return found
