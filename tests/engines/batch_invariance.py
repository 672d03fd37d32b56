"""Prints the largest number of different logits that one request gets in different batches (0: invariant).

A program of its own, because OpenBLAS reads OPENBLAS_CORETYPE once. Usage: python -m tests.engines.batch_invariance DIR
"""

import sys

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from evalharness.engines.emulated.engine import load_model
from evalharness.engines.emulated.memory import Row
from evalharness.engines.emulated.runner import ModelRunner

LENGTH = 150


def differing_logits(folder: str) -> int:
    """Compare a request alone with the same request among others, at several places of every batch size."""
    model, _ = load_model(folder, 512)
    runner = ModelRunner(model, (1, 2, 4, 8, 16, 32), 512)
    rng = np.random.default_rng(0)
    rows = []
    for index in range(32):
        length = LENGTH if index == 0 else int(rng.integers(2, 400))
        blocks = runner.cache.allocate(length)
        rng_entries = rng.standard_normal((model.config.num_hidden_layers, length, model.config.latent), np.float32)
        runner.cache.write(blocks, rng_entries)
        rows.append(Row(int(rng.integers(3, 250)), length - 1, blocks))
    mine, others = rows[0], rows[1:]
    alone = runner.step([mine])[0].copy()
    worst = 0
    for size in (2, 3, 5, 8, 9, 16, 23, 32):
        for place in sorted({0, 1, size // 2, size - 1}):
            batch = [*others[:place], mine, *others[place : size - 1]]
            worst = max(worst, int((runner.step(batch)[place] != alone).sum()))
    return worst


if __name__ == "__main__":
    with threadpool_limits(limits=1, user_api="blas"):
        print(threadpool_info()[0].get("architecture"), differing_logits(sys.argv[1]))
