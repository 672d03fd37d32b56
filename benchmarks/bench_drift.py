"""How often the drift chart cries wolf, and how soon it finds a loss: `python benchmarks/bench_drift.py`."""

from __future__ import annotations

import numpy as np

from evalharness.watch.drift import watch

LEVEL, SIGMA, ANSWERS = 0.9, 0.012, 250


def nights(count: int, seed: int, level: float = LEVEL) -> list[float]:
    """Independent normal nights."""
    return list(np.random.default_rng(seed).normal(level, SIGMA, count))


def false_alarms(runs: int, length: int) -> float:
    """Alarms per run of `length` steady nights."""
    return sum(len(watch(nights(length, seed), [ANSWERS] * length).shifts) for seed in range(runs)) / runs


def delays(sigmas: float, runs: int, before: int = 40, after: int = 60) -> np.ndarray:
    """Nights from a loss of `sigmas` to its alarm; `after` where there was none."""
    found = []
    for seed in range(runs):
        values = nights(before, seed) + nights(after, seed + 10_000, LEVEL - sigmas * SIGMA)
        shifts = watch(values, [ANSWERS] * len(values)).shifts
        late = [s.found - before for s in shifts if s.direction == "fell" and s.found >= before]
        found.append(late[0] if late else after)
    return np.array(found)


if __name__ == "__main__":
    print(f"false alarms per 400 steady nights: {false_alarms(200, 400):.3f}")
    for size in (1.0, 2.0, 4.0, 8.0):
        found = delays(size, 200)
        median, most = np.quantile(found, [0.5, 0.9])
        print(f"loss of {size:g} sigmas: found after {median:.0f} nights (90 %: {most:.0f})")
