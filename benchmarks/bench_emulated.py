"""The emulated engine: its speed one request at a time and in full batches, its steps against their matrix products,
and where the time of answering goes.

One BLAS thread, as in the engine itself. The floor of a step is the matrix products of the dense layers and of the
vocabulary: what BLAS needs for them alone on the same arrays, attention left out.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import resource
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measure import Figures
from evalharness.canary.problems import documents, render_prompt
from evalharness.capture.paths import CAPTURE_PATHS
from evalharness.engines.base import Engine, Request, create_engine
from evalharness.engines.emulated.engine import load_model
from evalharness.engines.emulated.kernels import head_linear, linear, padded_rows
from evalharness.engines.emulated.memory import Row
from evalharness.engines.emulated.prefill import prefill
from evalharness.engines.emulated.prompts import Prefiller
from evalharness.engines.emulated.runner import ModelRunner
from evalharness.engines.emulated.scheduler import DecodeCount, Scheduler
from evalharness.engines.emulated.weights import Model
from evalharness.spec import ArmSpec, parse_spec

MODEL = "canary-v3"
ARM = "patched"
MAX_TOKENS = 64  # the task's own
SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT = 2048
STEPS = ((1, 170), (8, 170), (32, 60), (32, 170), (32, 300))
GROUPS = {  # functions, by module and name, whose time with all they call makes up a group; none calls another
    "matrix products": [("kernels", "linear"), ("kernels", "head_linear")],
    "attention over the paged cache": [("flashmla", "attend_blocks")],
    "merging of partial attention": [("flashmla", "combine")],
    "plan of the attention": [("flashmla", "plan_tiles")],
    "norms, rotary embedding, activations, cache writes": [
        ("kernels", name) for name in ("rms_norm", "rotate_heads", "store_latent", "swiglu", "add", "embed")
    ],
    "choice of tokens": [("sampling", "choose")],
    "tokenizer and stop strings": [("text", "encode"), ("text", "decode"), ("text", "ends_with_stop")],
}

Function = tuple[str, int, str]  # file, line, name: how cProfile names one


def word_problems(limit: int, max_tokens: int) -> Iterator[Request]:
    """Prompts of gsm8k_canary as the default profile asks them."""
    for number, row in enumerate(documents("gsm8k_canary", n=limit)):
        yield Request(f"g{number}", render_prompt(row["question"]), max_tokens, stop=("Question:",))


def opened_engine(model: str, arms: Sequence[str]) -> Engine:
    """An open emulated engine."""
    engine = create_engine("emulated")
    options = {"kind": "emulated", "model": model}
    engine.open(parse_spec({"name": "bench", "engine": options, "arms": list(arms), "tasks": ["t"]}))
    return engine


def answering(batched: int, alone: int) -> Iterator[Figures]:
    """The same arm's tokens and seconds, one request at a time and in full batches; start excluded."""
    engine = opened_engine(MODEL, [ARM])
    engine.use(ArmSpec.parse(ARM))
    one_by_one = [[request] for request in word_problems(alone, MAX_TOKENS)]
    together = [list(word_problems(batched, MAX_TOKENS))]
    for name, waves in (("one request at a time", one_by_one), ("batches of up to 32", together)):
        wall, cpu = time.perf_counter(), time.process_time()
        done = [completion for wave in waves for completion in engine.generate(wave)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        prompt, tokens = (sum(getattr(one, field) for one in done) for field in ("prompt_tokens", "output_tokens"))
        yield {"name": name, "answers": len(done), "prompt": prompt, "tokens": tokens, "wall_s": wall, "cpu_s": cpu}
    engine.close()


def decode_steps(model: Model, ids: Sequence[int]) -> Iterator[Figures]:
    """Tokens a second of a replayed step by batch and context, and of its dense matrix products alone."""
    runner = _captured(model)
    for batch, length in STEPS:
        rows = [Row(ids[i], length - 1, runner.cache.allocate(length)) for i in range(batch)]
        step = best(partial(runner.step, rows))
        floor = best(partial(_all, _products(runner, batch)))
        yield {"name": f"decode, batch {batch}, context {length}", "per_s": batch / step, "floor_per_s": batch / floor}
        for row in rows:
            runner.cache.free(row.blocks)


def _captured(model: Model) -> ModelRunner:
    """A runner with the graphs of ARM."""
    runner = ModelRunner(model, SIZES, CONTEXT)
    runner.capture(CAPTURE_PATHS[ARM])
    return runner


def _products(runner: ModelRunner, batch: int) -> list[Callable[[], None]]:
    """The dense products that the graph of `batch` recorded, and the vocabulary's, on their own arrays."""
    graph = next(graph for descriptor, graph in runner.graphs.items() if descriptor.num_tokens == batch)
    dense = [node for node in graph.nodes if node.kernel in (linear, head_linear)]
    rows, model = padded_rows(batch), runner.model
    hidden = np.ones((rows, len(model.head)), np.float32)
    logits = np.empty((rows, model.config.vocab_size), np.float32)
    return [*(partial(node.kernel, *node.operands) for node in dense), partial(linear, hidden, model.head, logits)]


def _all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def prefill_lengths(model: Model, ids: Sequence[int]) -> Iterator[Figures]:
    """Tokens a second of prefill by prompt length, and of its dense matrix products alone."""
    for length in (150, 500, 1500):
        seconds = best(partial(prefill, model, ids[:length]), 3)
        dense = [
            partial(np.matmul, np.ones((length, len(weight)), np.float32), weight)
            for layer in model.layers
            for weight in (layer.query.project, layer.kv_down, layer.output, layer.gate_up, layer.down)
        ]
        floor = best(partial(_all, dense), 3)
        yield {"name": f"prefill, {length} tokens", "per_s": length / seconds, "floor_per_s": length / floor}


def best(work: Callable[[], object], repeats: int = 10) -> float:
    """Shortest of some runs, in processor seconds."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


class AtOnce(ThreadPoolExecutor):
    """Prefills where it is asked, beside the profile: its seconds are a group of their own."""

    def __init__(self, profile: cProfile.Profile) -> None:
        super().__init__(1)
        self.profile, self.seconds = profile, 0.0

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run now."""
        self.profile.disable()
        began = time.process_time()
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        self.seconds += time.process_time() - began
        self.profile.enable()
        return done


def profiled(model: Model, text: Any, limit: int) -> list[Figures]:
    """Shares of the time of answering `limit` word problems by group of functions, largest first."""
    runner, profile = _captured(model), cProfile.Profile(time.process_time)
    workers = AtOnce(profile)
    scheduler = Scheduler(runner, Prefiller(model, workers), text, CONTEXT, DecodeCount())
    profile.enable()
    for _ in scheduler.serve(word_problems(limit, MAX_TOKENS)):
        pass
    profile.disable()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    seconds = {name: _seconds(stats, group) for name, group in GROUPS.items()}
    total = sum(entry[2] for entry in stats.values())
    seconds |= {"prefill": workers.seconds, "scheduler, runner and input buffers": total - sum(seconds.values())}
    whole = sum(seconds.values())
    return [{"name": n, "share": s / whole} for n, s in sorted(seconds.items(), key=lambda item: -item[1])]


def _seconds(stats: Mapping[Function, Any], group: Collection[tuple[str, str]]) -> float:
    """Time in the functions of a group and in all they call; one that another of the group calls counts once."""
    callers = [entry[4] for function, entry in stats.items() if _named(function) in group]
    return sum(float(used[3]) for found in callers for caller, used in found.items() if _named(caller) not in group)


def _named(function: Function) -> tuple[str, str]:
    return PurePath(function[0]).stem, function[2]


def main() -> None:
    """Print one JSON line."""
    found: Figures = {"answering": list(answering(batched=128, alone=16))}
    model, text = load_model(MODEL, CONTEXT)
    ids = text.encode("How many? " * 200)
    with threadpool_limits(limits=1, user_api="blas"):
        found["steps"] = [*decode_steps(model, ids), *prefill_lengths(model, ids)]
        found["profile"] = profiled(model, text, 64)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


if __name__ == "__main__":
    main()
