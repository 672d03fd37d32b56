"""Do vLLM's mHC kernels wait for their own copies? Reads the CUDA code that TileLang generates; needs no GPU.

    pip install torch tilelang==0.1.9 apache-tvm-ffi==0.1.9    what vLLM 0.22.1 asks for
    python scripts/pipeline_waits.py VLLM_SOURCES [--hidden 2048,4096,7168]

VLLM_SOURCES is a folder with vllm/_tilelang_ops.py of the release in question (an unpacked wheel will do). A pipelined
loop commits one group of asynchronous copies for each piece and reads piece `i` after `cp_async_wait<n>`, which returns
when at most n groups are still under way. So before the read of piece i (from 0) at least i + 1 of the groups committed
by then must be done: committed - n > i. Each line shows the order of commits and waits, and the pieces read too early.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

TARGET = "cuda -arch=sm_90a"
SPLITS, TOKENS = 32, 8  # neither changes the loops
LOOP = r"for \(int i0_h\w* = 0; i0_h\w* < (\d+)"
EVENT = re.compile(rf"cp_async_(commit)|cp_async_wait<(\d+)>|{LOOP}|^    (\}})$", re.MULTILINE)


def load_ops(sources: Path) -> Any:
    """vllm/_tilelang_ops.py alone: what it imports of vLLM is replaced by the three facts it asks for."""
    platform = type("Platform", (), {name: staticmethod(lambda: True) for name in (
        "is_cuda_alike", "is_cuda", "is_arch_support_pdl")})  # fmt: skip
    facts: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": platform},
        "vllm.utils": {},
        "vllm.utils.import_utils": {"has_tilelang": lambda: True},
        "vllm.utils.math_utils": {"cdiv": lambda a, b: -(-a // b)},
    }
    for name, content in facts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location("_tilelang_ops", sources / "vllm" / "_tilelang_ops.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{sources} holds no vllm/_tilelang_ops.py.")
    ops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ops)
    return ops


def generated(ops: Any, hidden: int) -> str:
    """CUDA code of `mhc_pre_big_fuse_with_norm_tilelang` for streams of `hidden` channels."""
    import tilelang

    def of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype)

    half, t = torch.bfloat16, TOKENS
    program = ops.mhc_pre_big_fuse_with_norm_tilelang.get_tir(
        of(SPLITS, t, 24), of(SPLITS, t), of(3), of(24), of(t, 4, hidden, dtype=half), of(t, 4), of(t, 16),
        of(t, hidden, dtype=half), of(hidden, dtype=half), hidden_size=hidden, rms_eps=1e-6, hc_pre_eps=1e-6,
        hc_sinkhorn_eps=1e-6, hc_post_mult_value=2.0, sinkhorn_repeat=20, norm_eps=1e-6, n_splits=SPLITS, hc_mult=4,
    )  # fmt: skip
    config = {getattr(key, "value", key): value for key, value in ops.pass_configs.items()}
    context = tilelang.tvm.transform.PassContext(opt_level=3, config=config)
    with context, tilelang.tvm.target.Target(TARGET):
        lowered = tilelang.engine.lower(program, target=TARGET, enable_host_codegen=False, enable_device_compile=False)
    return str(lowered.kernel_source)


def events(code: str) -> Iterator[str]:
    """`commit` and `wait N` in the order in which they run; a loop over pieces is unrolled."""
    body: list[str] | None = None
    times = 0
    for commit, wait, loop, end in EVENT.findall(code):
        if loop:
            body, times = [], int(loop)
        elif end and body is not None:
            yield from body * times
            body = None
        elif not end:
            event = commit or f"wait {wait}"
            if body is None:
                yield event
            else:
                body.append(event)


def too_early(order: list[str]) -> list[int]:
    """Pieces, from 0, that are read while their copy may still be under way."""
    committed, read, early = 0, 0, []
    for event in order:
        if event == "commit":
            committed += 1
            continue
        if committed - int(event.removeprefix("wait ")) <= read:
            early.append(read)
        read += 1
    return early


def pipelines(order: list[str]) -> Iterator[list[str]]:
    """The kernel's loops one by one: each ends with `wait 0`."""
    start = 0
    for end, event in enumerate(order, start=1):
        if event == "wait 0":
            yield order[start:end]
            start = end


def main() -> None:
    """Print one line a loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--hidden", default="2048,4096,7168", help="channels of the residual stream")
    options = parser.parse_args()
    ops = load_ops(options.sources)
    for hidden in map(int, options.hidden.split(",")):
        for n, order in enumerate(pipelines(list(events(generated(ops, hidden)))), start=1):
            early = too_early(order)
            said = f"read too early: {', '.join(map(str, early))}" if early else "waits for every piece"
            print(f"{hidden} channels, loop {n}: {said}  ({', '.join(order)})")


if __name__ == "__main__":
    main()
