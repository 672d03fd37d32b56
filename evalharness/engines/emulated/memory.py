"""Static memory of a model runner: the paged KV cache, its block allocator, the input buffers and the activations."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from evalharness.engines.emulated.checkpoint import ModelConfig
from evalharness.engines.emulated.device import Device
from evalharness.engines.emulated.flashmla import BLOCK, AttentionState, Partials, SchedMeta
from evalharness.engines.emulated.kernels import Floats, padded_rows

NULL_BLOCK = 0  # rows without a token write here; nobody reads it


def blocks_for(tokens: int) -> int:
    """Number of cache blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK)


class KVCache:
    """One pool a layer, [blocks, 64, latent]; a request owns whole blocks. Raises IndexError when none is free."""

    def __init__(self, device: Device, config: ModelConfig, num_blocks: int) -> None:
        self.layers = [device.empty((num_blocks, BLOCK, config.latent)) for _ in range(config.num_hidden_layers)]
        self._free = list(range(NULL_BLOCK + 1, num_blocks))

    def allocate(self, tokens: int) -> list[int]:
        """Blocks for `tokens` tokens; the lowest free ones, so that the touched memory stays small."""
        return [heapq.heappop(self._free) for _ in range(blocks_for(tokens))]

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back."""
        for block in blocks:
            heapq.heappush(self._free, block)

    def write(self, blocks: Sequence[int], entries: Floats) -> None:
        """Store a prompt's entries[layer, tokens, latent] in its blocks."""
        for pool, layer in zip(self.layers, entries, strict=True):
            for start, block in zip(range(0, len(layer), BLOCK), blocks, strict=False):
                part = layer[start : start + BLOCK]
                pool[block, : len(part)] = part


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part in a decode step: its newest token, that token's position, and the request's blocks."""

    token: int
    position: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class InputBuffers:
    """The inputs of a decode step at stable addresses, for the largest batch.

    Rows are padded to whole tiles; `seq_lens` and `block_table` have a row per request.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    block_table: NDArray[np.int32]

    @classmethod
    def allocate(cls, device: Device, batch: int, max_blocks: int) -> InputBuffers:
        """Buffers for up to `batch` requests of up to `max_blocks` blocks each."""
        rows = padded_rows(batch)
        tokens, positions, slots = (device.empty((rows,), np.int32) for _ in range(3))
        return cls(
            tokens, positions, slots, device.empty((batch,), np.int32), device.empty((batch, max_blocks), np.int32)
        )

    def write(self, rows: Sequence[Row]) -> None:
        """Fill in a step; unused rows get token 0, length 0 and the null block."""
        self._clear()
        for i, row in enumerate(rows):
            self.block_table[i, : len(row.blocks)] = row.blocks
        used = slice(len(rows))
        self.tokens[used] = [row.token for row in rows]
        position = np.array([row.position for row in rows], np.int32)
        self.positions[used], self.seq_lens[used] = position, position + 1
        pages = [row.blocks[row.position // BLOCK] for row in rows]
        self.slots[used] = np.array(pages, np.int32) * BLOCK + position % BLOCK

    def write_dummy(self, batch: int) -> None:
        """What Model Runner V2 captures with: `batch` requests of one token, in the null block."""
        self._clear()
        self.seq_lens[:batch] = 1

    def _clear(self) -> None:
        for field in fields(self):
            getattr(self, field.name)[:] = 0

    def attention_state(self, batch: int) -> AttentionState:
        """A fresh state, with an empty plan, on views of these buffers."""
        return AttentionState(
            self.seq_lens[:batch], self.block_table[:batch], self.slots[: padded_rows(batch)], SchedMeta()
        )


@dataclass(frozen=True, slots=True)
class Activations:
    """Everything that a decode step computes in, one row a token; the names follow the forward pass."""

    residual: Floats
    normed: Floats
    q_down: Floats
    q_flat: Floats
    kv: Floats
    query: Floats
    attended: Floats
    values: Floats
    gate_up: Floats
    gated: Floats
    delta: Floats
    hidden: Floats
    partials: Partials

    @classmethod
    def allocate(cls, device: Device, config: ModelConfig, batch: int, max_blocks: int) -> Activations:
        """Activations for up to `batch` requests of up to `max_blocks` blocks each."""
        c, rows, heads = config, padded_rows(batch), config.num_attention_heads
        wide, places = 2 * c.intermediate_size, batch * max_blocks
        return cls(
            **{name: device.empty((rows, c.hidden_size)) for name in ("residual", "normed", "delta", "hidden")},
            q_down=device.empty((rows, c.q_lora_rank or 0)),
            q_flat=device.empty((rows, heads * c.query)),
            kv=device.empty((rows, c.latent)),
            query=device.empty((rows, heads, c.latent)),
            attended=device.empty((rows, heads, c.kv_lora_rank)),
            values=device.empty((rows, heads, c.v_head_dim)),
            gate_up=device.empty((rows, wide)),
            gated=device.empty((rows, c.intermediate_size)),
            partials=Partials(device.empty((places, heads, c.kv_lora_rank)), device.empty((places, heads))),
        )

    def first(self, rows: int) -> Activations:
        """The same memory, seen as `rows` rows."""
        views = {f.name: getattr(self, f.name)[:rows] for f in fields(self) if f.name != "partials"}
        return Activations(**views, partials=self.partials)
