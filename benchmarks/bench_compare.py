"""Time and memory of comparing a million paired samples.

Run it with `python benchmarks/bench_compare.py [pairs] [tokens]`.

Columns of two arms of `pairs` answers of `tokens` token ids each are made up first; timed is everything from
there to the three written tables: putting rows in order, pairing, tests, intervals, token agreement, verdict.
Memory is the peak of the whole process, the made-up columns included.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from evalharness.compare import compare
from evalharness.policy import load_policy
from evalharness.records import ArmState, ArmSummary, Cause, Run
from evalharness.reports import write_tables
from evalharness.table import CAUSES, STRIDE, SampleTable, Tokens, digest

VOCABULARY = 129_280


def main() -> None:
    """Measure and print one line."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    length = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, pairs * length + STRIDE, dtype=np.int32)
    hashes = np.array([f"{i:016x}" for i in range(pairs)], dtype="S16")
    order = rng.permutation(pairs)  # answers finish in another order than they were asked in
    columns = [_columns(tokens, hashes, np.arange(pairs), 0.0, rng), _columns(tokens.copy(), hashes, order, 0.03, rng)]
    run = Run("bench", "bench", "2026-12-01T00:00:00+00:00", "0" * 64, {}, {}, {}, _arms())
    start = time.perf_counter()
    tables = {arm: SampleTable.from_columns(**made) for arm, made in zip(("eager", "native"), columns, strict=True)}
    columns.clear()
    comparison = compare(run, {"bench": tables}, {}, load_policy())
    write_tables(comparison)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"{pairs} pairs x {length} tokens: {seconds:.2f} s, peak {peak:.2f} GiB")


def _arms() -> tuple[ArmSummary, ...]:
    return tuple(ArmSummary(name, name, ArmState.DONE) for name in ("eager", "native"))


def _columns(
    tokens: np.ndarray, hashes: np.ndarray, order: np.ndarray, changed: float, rng: np.random.Generator
) -> dict[str, object]:
    """Columns of one arm whose answers differ from token 10 on in `changed` of the rows."""
    n = len(order)
    length = (len(tokens) - STRIDE) // n
    altered = np.flatnonzero(rng.random(n) < changed)
    tokens[altered * length + 10] += 1
    score = (np.random.default_rng(1).random(n) < 0.95).astype(np.float64)
    score[altered] = rng.random(len(altered)) < 0.95
    cause = np.where(score == 1, CAUSES.index(Cause.CORRECT), CAUSES.index(Cause.WRONG)).astype(np.int8)
    return {
        "doc_id": order,
        "repeat": np.zeros(n, np.int64),
        "doc_hash": hashes[order],
        "prompt": digest(hashes[order]),
        "scores": {"exact_match": score[order]},
        "cause": cause[order],
        "capped": np.zeros(n, np.bool_),
        "degenerate": np.zeros(n, np.bool_),
        "output_tokens": np.full(n, length),
        "seconds": np.full(n, 0.5),
        "text": np.zeros(n, np.uint64),
        "tokens": Tokens(tokens, order * length, np.full(n, length)),
    }


if __name__ == "__main__":
    main()
