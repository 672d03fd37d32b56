"""FlashMLA's decode attention in miniature: a lazily made plan, split-KV partial attention, and the combination.

The plan is made by a launched kernel on first use and then trusted, as FlashMLA's interface does it: whoever keeps a
`SchedMeta` beyond a change of the sequence lengths gets attention over the blocks of the old lengths.

There is one partial result per block, not per partition, so that a request's partials are merged in block order
whatever else is in the batch: the plan decides who visits a block, never how the sum is formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalharness.engines.emulated.device import Device
from evalharness.engines.emulated.kernels import Floats, Ints

BLOCK = 64
PARTITIONS = 8
LOWEST = np.float32(-1e30)  # stands for minus infinity, without its NaNs
TINY = np.float32(1e-30)


@dataclass(slots=True)
class SchedMeta:
    """The plan of one batch size; empty until the first attention call that sees it.

    `tile_scheduler_metadata` [PARTITIONS, 2]: each partition's half-open range in the list of all requests' blocks.
    `num_splits` [batch + 1]: where each request's blocks begin in that list.
    """

    have_initialized: bool = False
    tile_scheduler_metadata: NDArray[np.int32] | None = None
    num_splits: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class AttentionState:
    """What attention needs besides queries: views of the static input buffers, and the plan, shared by all layers.

    `block_table` [batch, blocks], `seq_lens` [batch], `slots` [padded rows] (where each row's cache entry goes).
    """

    seq_lens: Ints
    block_table: Ints
    slots: Ints
    sched_meta: SchedMeta


@dataclass(frozen=True, slots=True)
class Partials:
    """Room for one partial result per block: `out` [blocks, heads, rank], `lse` [blocks, heads]."""

    out: Floats
    lse: Floats


def mla_with_kv_cache(
    device: Device, q: Floats, cache: Floats, state: AttentionState, scale: float, partials: Partials, out: Floats
) -> None:
    """Attend from q[batch, heads, rank + rope] to the paged cache[block, 64, rank + rope].

    Writes out[batch, heads, rank]; a request of length 0 gets zeros.
    """
    meta = state.sched_meta
    if not meta.have_initialized:
        meta.tile_scheduler_metadata = device.empty((PARTITIONS, 2), np.int32)
        meta.num_splits = device.empty((len(state.seq_lens) + 1,), np.int32)
        device.launch(plan_tiles, state.seq_lens, meta.tile_scheduler_metadata, meta.num_splits)
        meta.have_initialized = True
    plan = (meta.tile_scheduler_metadata, meta.num_splits)
    device.launch(attend_blocks, q, cache, state.block_table, state.seq_lens, *plan, scale, partials.out, partials.lse)
    device.launch(combine, partials.out, partials.lse, meta.num_splits, out)


def plan_tiles(seq_lens: Ints, tiles: NDArray[np.int32], num_splits: NDArray[np.int32]) -> None:
    """Spread the blocks of all requests evenly over the partitions."""
    num_splits[0] = 0
    np.cumsum(-(-seq_lens // BLOCK), out=num_splits[1:])
    total = int(num_splits[-1])
    share = -(-total // PARTITIONS)
    tiles[:, 0] = np.minimum(np.arange(PARTITIONS) * share, total)
    tiles[:, 1] = np.minimum(tiles[:, 0] + share, total)


def attend_blocks(
    q: Floats,
    cache: Floats,
    block_table: Ints,
    seq_lens: Ints,
    tiles: NDArray[np.int32],
    num_splits: NDArray[np.int32],
    scale: float,
    out: Floats,
    lse: Floats,
) -> None:
    """Partial attention over the blocks that the plan names, and no others, one partition after another."""
    request = np.repeat(np.arange(len(seq_lens)), np.diff(num_splits))
    block = np.arange(len(request)) - num_splits[request]
    pages = block_table[request, block]
    visible = seq_lens[request] - block * BLOCK
    for begin, end in tiles.tolist():
        part = slice(begin, end)
        _attend(q, cache, request[part], pages[part], visible[part], scale, out[part], lse[part])


def _attend(
    q: Floats, cache: Floats, request: Ints, pages: Ints, visible: Ints, scale: float, out: Floats, lse: Floats
) -> None:
    """Attention of q[request[i]] within cache[pages[i]], of which the first visible[i] tokens count.

    A partition is small enough for its blocks to stay in the processor's cache between the two passes over them.
    """
    scores = np.empty((len(pages), q.shape[1], BLOCK), np.float32)
    for score, row, page in zip(scores, request.tolist(), pages.tolist(), strict=True):
        np.dot(q[row], cache[page].T, out=score)
    weights = _softmax(scores, np.arange(BLOCK) >= visible[:, None], scale, lse)
    for weight, page, result in zip(weights, pages.tolist(), out, strict=True):
        np.dot(weight, cache[page, :, : out.shape[-1]], out=result)


def _softmax(scores: Floats, masked: NDArray[np.bool_], scale: float, lse: Floats) -> Floats:
    """Softmax within each block, in place; writes the log of each block's sum to lse."""
    scores *= np.float32(scale)
    np.copyto(scores, LOWEST, where=masked[:, None])
    top = scores.max(axis=-1, keepdims=True)
    np.exp(scores - top, out=scores)
    np.copyto(scores, 0, where=masked[:, None])
    total = scores.sum(axis=-1, keepdims=True)
    scores /= np.maximum(total, TINY)
    lse[:] = (top + np.log(np.maximum(total, TINY)))[..., 0]
    return scores


def combine(partial: Floats, lse: Floats, num_splits: NDArray[np.int32], out: Floats) -> None:
    """Merge each request's partial results by their log-sum-exp, in block order."""
    counts = np.diff(num_splits)
    request = np.repeat(np.arange(len(counts)), counts)
    top = np.full((len(counts), lse.shape[1]), LOWEST)
    np.maximum.at(top, request, lse[: len(request)])
    weights = np.exp(lse[: len(request)] - top[request])
    total = np.zeros_like(top)
    out[:] = 0
    for step in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > step)
        place = num_splits[rows] + step
        total[rows] += weights[place]
        out[rows] += weights[place][..., None] * partial[place]
    out /= np.maximum(total, TINY)[..., None]
