"""What the benchmarks share: a command in a process of its own and what it spent, ratios, and how figures grow.

This module imports nothing heavy: a child's peak memory is never less than its parent's.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEEPEST = 1.15  # an exponent over this is growth faster than linear; n log n from 10^3 to 10^6 has 1.1
VERDICTS = frozenset({0, 1, 3, 4})  # exit codes of a command that reached a verdict
Figures = dict[str, Any]
Parts = Mapping[str, Callable[..., Figures]]


@dataclass(frozen=True, slots=True)
class Spent:
    """Wall and processor seconds (user and system, all threads and children), and the peak memory in MiB."""

    wall: float
    cpu: float
    peak: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu, max(self.peak, other.peak))

    def figures(self) -> Figures:
        """As plain data."""
        return {"wall_s": round(self.wall, 3), "cpu_s": round(self.cpu, 3), "peak_mib": round(self.peak, 1)}


NOTHING = Spent(0.0, 0.0, 0.0)


def spent(command: Sequence[str], allowed: Collection[int] = (0,)) -> tuple[Spent, str]:
    """Run `command` from the repository's root; what it spent and its standard output.

    Raises:
        SystemExit: its exit status is not among `allowed`.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, cwd=ROOT)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in allowed:
            raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
        said.seek(0)
        return Spent(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024), said.read()


def evalharness(*arguments: str | Path, allowed: Collection[int] = VERDICTS) -> Spent:
    """A command of the harness as a user types it, imports included."""
    return spent([sys.executable, "-m", "evalharness", *map(str, arguments)], allowed)[0]


def part(module: str, *arguments: str | Path | int) -> tuple[Spent, Figures]:
    """`python -m benchmarks.MODULE ARGUMENTS`; what it spent, and the JSON of its last line."""
    used, said = spent([sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)])
    found: Figures = json.loads(said.splitlines()[-1])
    return used, found


def main(parts: Parts) -> None:
    """The other end of `part`, for modules with several: the first argument names one of `parts`."""
    name, *given = sys.argv[1:]
    print(json.dumps(parts[name](*given)))


def ratio_row(name: str, ours: Spent, theirs: Spent, floor: Spent, limit: float) -> Figures:
    """Our processor seconds against theirs, and against what the machine must do at the least."""
    return {
        "name": name,
        "ours": ours.figures(),
        "theirs": theirs.figures(),
        "floor": floor.figures(),
        "ratio": round(ours.cpu / theirs.cpu, 3),
        "wall_ratio": round(ours.wall / theirs.wall, 3),
        "to_floor": round(ours.cpu / floor.cpu, 3),
        "limit": limit,
    }


def growth(name: str, unit: str, sizes: Sequence[Figures], *, start: bool = True) -> Figures:
    """A figure at several sizes (`n`, `cpu_s`, `peak_mib`, `floor_s`), and the exponents of its growth; whether its
    seconds hold the `start` of a process."""
    return {
        "name": name,
        "unit": unit,
        "sizes": list(sizes),
        "time": exponents([(size["n"], size["cpu_s"]) for size in sizes], sizes[0]["cpu_s"] if start else 0.0),
        "memory": exponents([(size["n"], size["peak_mib"]) for size in sizes], sizes[0]["peak_mib"]),
    }


def exponents(points: Sequence[tuple[float, float]], start: float) -> Figures:
    """Log-log slopes of (size, figure): `fit` by least squares over all; `net` between the two largest sizes with
    `start`, which has no part in growth, taken off both figures: the stricter of the two."""
    logs = [(math.log(size), math.log(figure)) for size, figure in points]
    x, y = (sum(column) / len(logs) for column in zip(*logs, strict=True))
    fit = sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)
    (less, small), (more, large) = ((size, max(figure - start, start / 100)) for size, figure in points[-2:])
    return {"fit": round(fit, 2), "net": round(math.log(large / small) / math.log(more / less), 2)}
