"""FlashMLA by itself: one decode call, planned outside or inside a captured graph, against a plain reference.

    python -m evalharness.capture.kernel_check          # one JSON line a row; needs vLLM and a Hopper GPU

No model, no runner: what remains is the kernel's contract, that a plan belongs to the lengths it was made for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from evalharness.capture.graph_nodes import kernels_being_captured, plans
from evalharness.capture.paths import CAPTURE_PATHS
from evalharness.errors import EngineError

HEADS, WIDTH, VALUE_WIDTH, BLOCK = 16, 576, 512, 64  # DeepSeek V3's latent: 512 + 64 rotary, shared by all heads
DUMMY_LENGTH = 1
SOUND = 0.01  # relative error of bfloat16 attention that is right; a stale plan errs by the order of 1
LENGTHS = (70, 200, 513, 1500)  # each over one block, where a plan for the dummy length no longer fits


@dataclass(frozen=True, slots=True)
class KernelRow:
    """`relative_error` is |out - reference| / |reference| (Frobenius), both in float32; `plan_recorded` whether
    the planning kernel is a node of the graph (None: no graph, or not to be told)."""

    path: str
    relative_error: float
    largest_error: float
    plan_recorded: bool | None


class Decode:
    """One batch of decode attention over a paged latent cache of random values (seeded)."""

    def __init__(self, torch: Any, flashmla: Any, lengths: Sequence[int]) -> None:
        self.torch, self.flashmla, self.real = torch, flashmla, lengths
        torch.manual_seed(0)
        blocks = -(-max(lengths) // BLOCK)
        shape = {"device": "cuda", "dtype": torch.bfloat16}
        self.queries = torch.randn(len(lengths), 1, HEADS, WIDTH, **shape)
        self.cache = torch.randn(len(lengths) * blocks, BLOCK, 1, WIDTH, **shape)
        table = torch.arange(len(lengths) * blocks, device="cuda", dtype=torch.int32)
        self.table = table.view(len(lengths), blocks)
        self.lengths = torch.full((len(lengths),), DUMMY_LENGTH, device="cuda", dtype=torch.int32)

    def plan(self) -> Any:
        """A plan holder that the first call fills."""
        return self.flashmla.get_mla_metadata()[0]

    def run(self, plan: Any) -> Any:
        """Attention with the lengths as they are; (batch, 1, heads, value width)."""
        return self.flashmla.flash_mla_with_kvcache(
            q=self.queries,
            k_cache=self.cache,
            block_table=self.table,
            cache_seqlens=self.lengths,
            head_dim_v=VALUE_WIDTH,
            tile_scheduler_metadata=plan,
            softmax_scale=WIDTH**-0.5,
            causal=True,
        )[0]

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Write `lengths` where captured graphs read them."""
        self.lengths.copy_(self.torch.tensor(lengths, dtype=self.torch.int32))

    def reference(self) -> Any:
        """The same attention in float32, written out."""
        flat = self.cache.view(len(self.real), -1, WIDTH).float()
        rows = []
        for query, keys, length in zip(self.queries.float(), flat, self.real, strict=True):
            weights = (query[0] @ keys[:length].T * WIDTH**-0.5).softmax(-1)
            rows.append(weights @ keys[:length, :VALUE_WIDTH])
        return self.torch.stack(rows).unsqueeze(1)


def check_kernel(lengths: Sequence[int] = LENGTHS) -> list[KernelRow]:
    """Run eagerly and under both capture paths; raises EngineError without vLLM."""
    try:
        torch, flashmla = import_module("torch"), import_module("vllm.v1.attention.ops.flashmla")
    except ImportError as error:
        raise EngineError(f"FlashMLA cannot be loaded: {error}.", "pip install 'evalharness[vllm]'") from error
    decode = Decode(torch, flashmla, lengths)
    reference = decode.reference()
    decode.set_lengths(lengths)
    eager = _row("eager", decode.run(decode.plan()), reference, None)
    known = [path for path in CAPTURE_PATHS.values() if path.shares_state is not None]
    return [eager, *(_captured(decode, path.name, path.for_capture, reference) for path in known)]


def _captured(decode: Decode, name: str, for_capture: Callable[..., Any], reference: Any) -> KernelRow:
    """Warm up and capture with dummy lengths, replay with the real ones."""
    decode.set_lengths([DUMMY_LENGTH] * len(decode.real))
    plan = decode.plan()
    decode.run(plan)
    plan = for_capture(plan, decode.plan)
    graph = decode.torch.cuda.CUDAGraph()
    with decode.torch.cuda.graph(graph):
        out = decode.run(plan)
        kernels = kernels_being_captured()
    decode.set_lengths(decode.real)
    graph.replay()
    decode.torch.cuda.synchronize()
    return _row(name, out, reference, plans(kernels) if kernels else None)


def _row(path: str, out: Any, reference: Any, plan_recorded: bool | None) -> KernelRow:
    difference = out.float() - reference
    relative = float(difference.norm() / reference.norm())
    return KernelRow(path, relative, float(difference.abs().max()), plan_recorded)


def faults(rows: Sequence[KernelRow]) -> list[str]:
    """What contradicts the contract: eager attention is right, and so is a graph captured with a fresh plan."""
    eager, *captured = rows
    if eager.relative_error > SOUND:
        return [f"eager: relative error {eager.relative_error:.3g} is over {SOUND}"]
    found = []
    for row in captured:
        if CAPTURE_PATHS[row.path].shares_state:
            continue
        if row.plan_recorded is False:
            found.append(f"{row.path}: the planning kernel is not in the graph")
        if row.relative_error > 2 * eager.relative_error:
            found.append(f"{row.path}: relative error {row.relative_error:.3g}, eager {eager.relative_error:.3g}")
    return found


def main() -> int:
    """Print a row a line, and every fault; 1 when there is one."""
    rows = check_kernel()
    for row in rows:
        sys.stdout.write(json.dumps(asdict(row)) + "\n")
    wrong = faults(rows)
    sys.stdout.writelines(f"{fault}\n" for fault in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except EngineError as error:
        raise SystemExit(f"error: {error}") from error
