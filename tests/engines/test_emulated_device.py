"""The emulated device and FlashMLA: captures record, replays run on the same arrays, and a plan is trusted."""

import numpy as np
import pytest
from numpy.typing import NDArray

from evalharness.engines.emulated.device import Device
from evalharness.engines.emulated.flashmla import (
    BLOCK,
    PARTITIONS,
    AttentionState,
    Partials,
    SchedMeta,
    mla_with_kv_cache,
    plan_tiles,
)
from evalharness.errors import EngineError

HEADS, RANK, ROPE = 2, 16, 8
Floats = NDArray[np.float32]


def double(x: Floats, out: Floats) -> None:
    np.multiply(x, 2, out=out)


def test_a_launch_outside_a_capture_runs_at_once() -> None:
    device = Device()
    x, out = np.ones(3, np.float32), device.empty((3,))
    device.launch(double, x, out)
    assert out.tolist() == [2, 2, 2]


def test_a_capture_records_and_does_not_execute() -> None:
    device = Device()
    x, out = np.ones(3, np.float32), device.empty((3,))
    with device.capture() as graph:
        device.launch(double, x, out)
    assert out.tolist() == [0, 0, 0]
    assert graph.has(double)
    assert len(graph.nodes) == 1


def test_a_replay_works_on_the_arrays_of_the_capture() -> None:
    device = Device()
    x, out = device.empty((3,)), device.empty((3,))
    address = out.ctypes.data
    with device.capture() as graph:
        device.launch(double, x[:2], out[:2])
    for value in (1, 5):
        x[:] = value
        graph.replay()
        assert out.tolist() == [2 * value, 2 * value, 0]
    assert out.ctypes.data == address


def test_memory_allocated_inside_a_capture_is_counted() -> None:
    device = Device()
    device.empty((1000,))
    with device.capture() as graph:
        device.empty((10,), np.int32)
    assert graph.pool_bytes == 40


def test_captures_do_not_nest_and_a_failed_one_ends() -> None:
    device = Device()
    with pytest.raises(EngineError, match="already being captured"), device.capture(), device.capture():
        pass
    out = device.empty((1,))
    device.launch(double, np.ones(1, np.float32), out)
    assert out[0] == 2


@pytest.mark.parametrize("lengths", [[1], [64], [65], [0, 200, 0, 1], [513] * 32, [1] * 3, [0, 0]])
def test_the_plan_gives_every_block_to_one_partition(lengths: list[int]) -> None:
    tiles, splits = np.zeros((PARTITIONS, 2), np.int32), np.zeros(len(lengths) + 1, np.int32)
    plan_tiles(np.array(lengths, np.int32), tiles, splits)
    blocks = [-(-length // BLOCK) for length in lengths]
    assert np.diff(splits).tolist() == blocks
    assert [place for begin, end in tiles for place in range(begin, end)] == list(range(sum(blocks)))
    shares = np.diff(tiles)
    assert shares.max() <= -(-sum(blocks) // PARTITIONS)


class Attention:
    """Random queries and a paged cache for requests of given lengths, in scattered blocks."""

    def __init__(self, lengths: list[int], max_blocks: int = 5) -> None:
        rng = np.random.default_rng(1)
        batch = len(lengths)
        self.device, self.scale = Device(), 0.2
        self.q = rng.standard_normal((batch, HEADS, RANK + ROPE), np.float32)
        self.cache = rng.standard_normal((1 + batch * max_blocks, BLOCK, RANK + ROPE), np.float32)
        table = 1 + rng.permutation(batch * max_blocks).reshape(batch, max_blocks).astype(np.int32)
        self.state = AttentionState(np.array(lengths, np.int32), table, np.zeros(8, np.int32), SchedMeta())
        self.partials = Partials(
            np.zeros((batch * max_blocks, HEADS, RANK), np.float32), np.zeros((batch * max_blocks, HEADS), np.float32)
        )
        self.out = np.full((batch, HEADS, RANK), np.nan, np.float32)

    def run(self) -> Floats:
        mla_with_kv_cache(self.device, self.q, self.cache, self.state, self.scale, self.partials, self.out)
        return self.out.copy()

    def expected(self, lengths: list[int]) -> NDArray[np.float64]:
        """Plain softmax attention over the first lengths[i] tokens."""
        result = np.zeros((len(lengths), HEADS, RANK))
        for i, length in enumerate(lengths):
            if length:
                context = self.cache[self.state.block_table[i]].reshape(-1, RANK + ROPE)[:length].astype(np.float64)
                weights = np.exp(self.q[i].astype(np.float64) @ context.T * self.scale)
                result[i] = weights / weights.sum(axis=1, keepdims=True) @ context[:, :RANK]
        return result


def test_a_fresh_plan_gives_exact_attention() -> None:
    lengths = [1, 63, 64, 65, 128, 300, 0]
    attention = Attention(lengths)
    np.testing.assert_allclose(attention.run(), attention.expected(lengths), atol=2e-6)


def test_a_stale_plan_is_trusted() -> None:
    """Planned for one token each, the kernel visits only the first block of what have become longer contexts."""
    attention = Attention([1] * 4)
    attention.run()
    attention.state.seq_lens[:] = [40, 64, 65, 300]
    np.testing.assert_allclose(attention.run(), attention.expected([40, 64, 64, 64]), atol=2e-6)


def test_a_plan_for_more_than_there_is_adds_nothing() -> None:
    attention = Attention([300, 300])
    attention.run()
    attention.state.seq_lens[:] = [20, 0]
    np.testing.assert_allclose(attention.run(), attention.expected([20, 0]), atol=2e-6)


def test_the_plan_is_made_once_by_a_launch_and_recorded_if_that_launch_is() -> None:
    fresh, used = Attention([1]), Attention([1])
    used.run()
    plan = used.state.sched_meta.tile_scheduler_metadata
    for attention, recorded in ((fresh, True), (used, False)):
        with attention.device.capture() as graph:
            attention.run()
        assert graph.has(plan_tiles) is recorded
    assert used.state.sched_meta.tile_scheduler_metadata is plan
    assert fresh.state.sched_meta.have_initialized


def test_a_recorded_plan_follows_the_lengths_of_the_replay() -> None:
    attention = Attention([1, 1])
    with attention.device.capture() as graph:
        attention.run()
    attention.state.seq_lens[:] = [300, 70]
    graph.replay()
    np.testing.assert_allclose(attention.out, attention.expected([300, 70]), atol=2e-6)
