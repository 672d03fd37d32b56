"""Comparing a thousand to a million paired answers that are in memory already, 64 tokens each.

Columns of two arms are made up first; timed is everything from there to the written tables: putting rows in order,
pairing, tests, intervals, token agreement, verdict. The floor sorts both arms' rows and compares every token once.
Memory is the peak of the whole process, the made-up columns included.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.measure import Figures, growth, part

SIZES = (1_000, 10_000, 100_000, 1_000_000)
LENGTH = 64
VOCABULARY = 129_280


def compare_figures() -> list[Figures]:
    """Growth of the comparison."""
    found = []
    for pairs in SIZES:
        used, seconds = part("bench_compare", pairs)
        found.append({"n": pairs, **used.figures(), **seconds})
    return [growth("comparison in memory", "pairs", found, start=False)]


# --- in a process of its own ----------------------------------------------------------------------------------


def measured(pairs: int) -> Figures:
    """Seconds of the comparison, start excluded, and of its floor."""
    _compared(_arms(100))  # what is imported on first use
    arms = _arms(pairs)
    floor = _floor(arms)
    began, cpu = time.perf_counter(), time.process_time()
    _compared(arms)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"wall_s": round(wall, 4), "cpu_s": round(cpu, 4), "floor_s": round(floor, 4)}


def _compared(columns: list[dict[str, Any]]) -> None:
    """Two arms' columns, which are used up, to the written tables."""
    from evalharness.compare import compare
    from evalharness.policy import load_policy
    from evalharness.records import ArmState, ArmSummary, Run
    from evalharness.reports import write_tables
    from evalharness.table import SampleTable

    names = ("eager", "native")
    arms = tuple(ArmSummary(name, name, ArmState.DONE) for name in names)
    run = Run("bench", "bench", "2026-12-01T00:00:00+00:00", "0" * 64, {}, {}, {}, arms)
    tables = {arm: SampleTable.from_columns(**made) for arm, made in zip(names, columns, strict=True)}
    columns.clear()
    write_tables(compare(run, {"bench": tables}, {}, load_policy()))


def _arms(pairs: int) -> list[dict[str, Any]]:
    """Columns of an arm and of one that differs in 3 % of the answers."""
    import numpy as np

    from evalharness.table import STRIDE

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, pairs * LENGTH + STRIDE, dtype=np.int32)
    hashes = np.array([f"{i:016x}" for i in range(pairs)], dtype="S16")
    order = rng.permutation(pairs)  # answers finish in another order than they were asked in
    return [_columns(tokens, hashes, np.arange(pairs), 0.0, rng), _columns(tokens.copy(), hashes, order, 0.03, rng)]


def _floor(columns: list[dict[str, Any]]) -> float:
    import numpy as np

    began = time.process_time()
    for column in columns:
        np.lexsort((column["repeat"], column["doc_id"]))
    ours, theirs = (column["tokens"].flat for column in columns)
    np.count_nonzero(ours == theirs)
    return time.process_time() - began


def _columns(tokens: Any, hashes: Any, order: Any, changed: float, rng: Any) -> dict[str, Any]:
    """Columns of one arm whose answers differ from token 10 on in `changed` of the rows."""
    import numpy as np

    from evalharness.records import Cause
    from evalharness.table import CAUSES, Tokens, digest

    n = len(order)
    altered = np.flatnonzero(rng.random(n) < changed)
    tokens[altered * LENGTH + 10] += 1
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
        "output_tokens": np.full(n, LENGTH),
        "seconds": np.full(n, 0.5),
        "text": np.zeros(n, np.uint64),
        "tokens": Tokens(tokens, order * LENGTH, np.full(n, LENGTH)),
    }


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
