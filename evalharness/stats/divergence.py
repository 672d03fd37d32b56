"""Where two arms' token sequences part."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from evalharness.table import STRIDE, IntArray, Tokens

SAME: Final = -1
CHUNK: Final = 8_192  # answers walked together: their tokens stay in cache


def first_divergence(one: Tokens, two: Tokens) -> IntArray:
    """Index of the first differing token of each pair of answers, (n,); SAME where none differs.

    An answer that is a prefix of the other diverges where it ends. Memory beyond the result is that of one
    chunk, whatever n.
    """
    shared = np.minimum(one.length, two.length)
    found = np.where(one.length == two.length, SAME, shared)
    for start in range(0, len(found), CHUNK):
        rows = slice(start, start + CHUNK)
        _walk(one, two, np.arange(*rows.indices(len(found))), shared, found)
    return found


def _walk(one: Tokens, two: Tokens, rows: IntArray, shared: IntArray, found: IntArray) -> None:
    """Step along `rows` and drop each as soon as it differs or ends; writes into `found`."""
    left, right = sliding_window_view(one.flat, STRIDE), sliding_window_view(two.flat, STRIDE)
    position = 0
    rows = rows[shared[rows] > 0]
    while len(rows):
        differs = left[one.start[rows] + position] != right[two.start[rows] + position]
        differs &= np.arange(STRIDE) < (shared[rows, None] - position)
        hit = differs.any(axis=1)
        found[rows[hit]] = position + differs[hit].argmax(axis=1)
        position += STRIDE
        rows = rows[~hit & (shared[rows] > position)]
