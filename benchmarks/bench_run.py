"""The default run as a user starts it: wall time, peak memory, and the harness's share around the engine.

    python benchmarks/bench_run.py [PROFILE] [--limit N]

A child process runs `evalharness run PROFILE` whole, imports included; a clock around every call into the engine
tells its part, and the rest is the harness: spec, lm-eval, scoring, store, tables.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", default="canary-v3")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(measured(options.profile, options.limit, options.child)))
        return
    limit = ["--limit", str(options.limit)] if options.limit else []
    command = [sys.executable, __file__, options.profile, *limit, "--child", str(time.time())]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def measured(profile: str, limit: int | None, began: float) -> dict[str, Any]:
    """Run in this process, whose parent noted the time `began`."""
    from evalharness.commands import runs
    from evalharness.runner import replica
    from evalharness.runner.choose import Choice

    clock = Clock()
    create = replica.create_engine
    replica.create_engine = lambda kind: TimedEngine(create(kind), clock)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        status = runs.run(Choice(profile, limit=limit), Path(folder), None, False)
    wall = time.time() - began
    return {
        "profile": profile,
        "exit_code": status,
        "wall_s": round(wall, 1),
        "engine_s": round(clock.seconds, 1),
        "harness_share": round(1 - clock.seconds / wall, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


class Clock:
    """Seconds spent inside what it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, and count the time."""
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - began


class TimedEngine:
    """An engine whose every step is timed."""

    def __init__(self, engine: Any, clock: Clock) -> None:
        self.engine, self.clock = engine, clock

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.engine, name)  # raises for what the engine has not, as protocols expect
        return lambda *arguments: self.clock.timed(method, *arguments)

    def generate(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Time each step of the generator, not what the harness does in between."""
        completions = self.engine.generate(requests)
        end = object()
        while (completion := self.clock.timed(next, completions, end)) is not end:
            yield completion


if __name__ == "__main__":
    main()
