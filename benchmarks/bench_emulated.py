"""Speed of the emulated engine: prefill and decode alone, then canary prompts under several arms.

    python benchmarks/bench_emulated.py [MODEL] [--arms eager,stock,patched] [--limit 250] [--max-tokens 64]

MODEL is canary-v3 or a local folder. Prompts are the canary tasks': `--limit` of gsm8k_canary, and 30 x 4 sampled ones
of aime25_canary.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator

from threadpoolctl import threadpool_limits

from evalharness.canary.problems import documents, render_prompt
from evalharness.engines.base import Request, create_engine
from evalharness.engines.emulated.engine import load_model
from evalharness.engines.emulated.memory import Row
from evalharness.engines.emulated.prefill import prefill
from evalharness.engines.emulated.runner import ModelRunner
from evalharness.spec import ArmSpec, parse_spec

SIZES = (1, 2, 4, 8, 16, 32)


def kernels_alone(model_name: str) -> None:
    """Best of ten: prefill tokens/s by prompt length, decode tokens/s by batch and context (one BLAS thread)."""
    model, text = load_model(model_name, 2048)
    ids = text.encode("How many? " * 200)
    runner = ModelRunner(model, SIZES, 2048)
    with threadpool_limits(limits=1, user_api="blas"):
        for length in (150, 500, 1500):
            seconds = best(lambda length=length: prefill(model, ids[:length]))
            print(f"prefill {length:5d} tokens            {length / seconds:7.0f} tokens/s")
        for batch, length in ((1, 170), (8, 170), (32, 60), (32, 170), (32, 300)):
            rows = [Row(ids[i], length - 1, runner.cache.allocate(length)) for i in range(batch)]
            seconds = best(lambda rows=rows: runner.step(rows))
            print(f"decode  {length:5d} context, batch {batch:2d}  {batch / seconds:7.0f} tokens/s")
            for row in rows:
                runner.cache.free(row.blocks)


def best(work: Callable[[], object], repeats: int = 10) -> float:
    """Shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def canary_requests(limit: int, max_tokens: int) -> Iterator[Request]:
    """The default profile's prompts."""
    for i, row in enumerate(documents("gsm8k_canary", n=limit)):
        yield Request(f"g{i}", render_prompt(row["question"]), max_tokens, stop=("Question:",))
    for i, row in enumerate(documents("aime25_canary", n=30)):
        for seed in range(4):
            prompt = render_prompt(row["problem"])
            yield Request(f"a{i}.{seed}", prompt, max_tokens, 0.6, 0.95, seed, ("Question:",))


def arms_in_use(model: str, arms: list[str], limit: int, max_tokens: int) -> None:
    """Wall and CPU seconds of each arm over the canary prompts."""
    engine = create_engine("emulated")
    options = {"kind": "emulated", "model": model}
    engine.open(parse_spec({"name": "bench", "engine": options, "arms": arms, "tasks": ["t"]}))
    for arm in arms:
        engine.use(ArmSpec.parse(arm))
        wall, cpu = time.perf_counter(), time.process_time()
        done = list(engine.generate(canary_requests(limit, max_tokens)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        tokens = sum(completion.output_tokens for completion in done)
        print(f"{arm:8s} {len(done)} answers, {tokens} tokens: wall {wall:.1f} s, cpu {cpu:.1f} s")
    engine.close()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def main() -> None:
    """Read the command line and run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="canary-v3")
    parser.add_argument("--arms", default="eager,stock,patched")
    parser.add_argument("--limit", type=int, default=250)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    kernels_alone(options.model)
    arms_in_use(options.model, options.arms.split(","), options.limit, options.max_tokens)


if __name__ == "__main__":
    main()
