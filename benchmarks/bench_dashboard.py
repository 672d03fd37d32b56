"""Builds the dashboard over many runs, again after one new run, and reports time, memory and the largest page.

python benchmarks/bench_dashboard.py --runs 1000

Every build is a process of its own, so its start and its imports are counted. The limits are those of the design: a
thousand runs of three arms and two tasks in 10 s and 1 GB, one new run in 2 s, no page over 1.5 MB.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.make_history import PROFILE, make_history


def built(results: Path, site: Path) -> tuple[float, float]:
    """Wall and processor seconds of one `dashboard build`."""
    command = [sys.executable, "-m", "evalharness", "dashboard", "build"]
    began, used = time.perf_counter(), cpu()
    subprocess.run([*command, "--results", str(results), "--out", str(site)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began, cpu() - used


def cpu() -> float:
    """Processor seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figures beside their limits."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        results, site = Path(folder) / "results", Path(folder) / "site"
        newest = make_history(results, runs + 8, keep_samples=30)[-1]
        (results / "schedule.yaml").write_text(f"jobs: [{{profile: {PROFILE}, at: '02:00'}}]\n", encoding="utf-8")
        (results / newest).rename(Path(folder) / newest)
        cold = built(results, site)
        again = built(results, site)
        (Path(folder) / newest).rename(results / newest)
        more = built(results, site)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
        count = sum(1 for _ in (site / "runs").iterdir())
        largest = max(site.rglob("*.html"), key=lambda page: page.stat().st_size)
        for words, (wall, used), limit in (
            (f"{count} runs, first build", cold, "10 s"),
            ("nothing new", again, ""),
            ("one new run", more, "2 s"),
        ):
            print(f"{words:24} {wall:6.2f} s wall, {used:5.2f} s of processor   {f'(limit {limit})' * bool(limit)}")
        print(f"greatest memory          {memory:6.0f} MB   (limit 1000 MB)")
        print(
            f"largest page              {largest.stat().st_size / 1e6:6.2f} MB   (limit 1.5 MB): {largest.parent.name}"
        )


if __name__ == "__main__":
    main()
