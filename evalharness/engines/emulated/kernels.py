"""The element-wise and matrix kernels of decode, batch-invariant bit for bit.

BLAS is free to sum in another order when a matrix has another number of rows, and on some processors (OpenBLAS'
Haswell and Zen kernels) even for another row of the same matrix. `linear` therefore always multiplies ROW_TILE rows at
a time: with 8 rows every row takes the same way through the kernel, on all of them. Decode rows are padded to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.signedinteger[Any]]

ROW_TILE = 8


def padded_rows(rows: int) -> int:
    """`rows`, rounded up to whole tiles."""
    return -(-rows // ROW_TILE) * ROW_TILE


def embed(ids: Ints, table: Floats, out: Floats) -> None:
    """out[row] = table[ids[row]]."""
    np.take(table, ids, axis=0, out=out, mode="clip")


def linear(x: Floats, weight: Floats, out: Floats) -> None:
    """out[rows, n] = x[rows, k] @ weight[k, n]; `rows` a multiple of ROW_TILE, everything contiguous."""
    tiles = x.reshape(-1, ROW_TILE, x.shape[-1])
    np.matmul(tiles, weight, out=out.reshape(len(tiles), ROW_TILE, -1))


def head_linear(x: Floats, weight: Floats, out: Floats) -> None:
    """out[rows, head, n] = x[rows, head, k] @ weight[head, k, n]; `rows` a multiple of ROW_TILE."""
    np.matmul(_head_tiles(x), weight, out=_head_tiles(out))


def _head_tiles(x: Floats) -> Floats:
    """View [rows, head, k] as [rows / ROW_TILE, head, ROW_TILE, k]."""
    return x.reshape(-1, ROW_TILE, *x.shape[1:]).swapaxes(1, 2)  # always a view: one axis is split


def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    """Root-mean-square norm over the last axis."""
    mean_square = np.square(x).mean(axis=-1, keepdims=True)
    np.multiply(x, 1 / np.sqrt(mean_square + np.float32(eps)), out=out)
    out *= weight


def rotate(x: Floats, cos: Floats, sin: Floats, out: Floats) -> None:
    """Rotary embedding of interleaved pairs (x0, x1), (x2, x3), ...; cos and sin broadcast over x[..., pair]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned_even, turned_odd = even * cos - odd * sin, odd * cos + even * sin
    out[..., 0::2], out[..., 1::2] = turned_even, turned_odd


def rotate_heads(x: Floats, positions: Ints, cos: Floats, sin: Floats, out: Floats) -> None:
    """`rotate` x[rows, head, rope] by each row's position; cos and sin are [position, pair]."""
    rotate(x, cos[positions][:, None], sin[positions][:, None], out)


def store_latent(
    x: Floats, weight: Floats, eps: float, positions: Ints, tables: tuple[Floats, Floats], slots: Ints, cache: Floats
) -> None:
    """Norm the latent and rotate the rope part of x[rows, rank + rope], and write them to slots of cache[block, 64, :].

    Rows without a token carry slot 0, which lies in the null block.
    """
    rank = len(weight)
    entry = np.empty_like(x)
    rms_norm(x[:, :rank], weight, eps, entry[:, :rank])
    rotate(x[:, rank:], tables[0][positions], tables[1][positions], entry[:, rank:])
    cache.reshape(-1, cache.shape[-1])[slots] = entry


def swiglu(x: Floats, out: Floats) -> None:
    """out[rows, n] = silu(x[:, :n]) * x[:, n:]."""
    gate, up = x[:, : out.shape[1]], x[:, out.shape[1] :]
    np.divide(gate, 1 + np.exp(np.minimum(-gate, 80)), out=out)  # exp(89) would overflow float32
    out *= up


def add(x: Floats, out: Floats) -> None:
    """Add x to out in place."""
    out += x
