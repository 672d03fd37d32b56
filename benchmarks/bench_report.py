"""Time and size of a sign-off: python benchmarks/bench_report.py (from the repository's root).

A run of 1319 + 240 answers in each of three arms is made up on disk. Timed is a fresh process that reads it, compares
it, writes every format and seals it: what a user waits for. Stages are timed in this process afterwards.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evalharness.assess import read_stored
from evalharness.reports import SIGNOFF, write_signoff
from evalharness.reports.signoff import build
from evalharness.verify import verify
from tests.stored_runs import stored_run

SIZES = {"gsm8k_canary": (1319, 1), "aime25_canary": (60, 4)}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = stored_run(Path(scratch), SIZES)
        command = [sys.executable, "-m", "evalharness", "report", str(folder.path), "--format", ",".join(SIGNOFF)]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"evalharness report, all formats: {wall:.2f} s, {used.ru_utime + used.ru_stime:.2f} s of CPU")
        for name in sorted(file for files in SIGNOFF.values() for file, _ in files):
            print(f"  {name}: {(folder.path / name).stat().st_size / 1e6:.3f} MB")
        began = time.perf_counter()
        stored = read_stored(folder)
        read = time.perf_counter()
        comparison = stored.comparison
        compared = time.perf_counter()
        write_signoff(build(stored, comparison), SIGNOFF)
        written = time.perf_counter()
        print(f"read {read - began:.2f} s, compare {compared - read:.2f} s, write {written - compared:.2f} s")
        found = verify(folder)
        print(f"verify {time.perf_counter() - written:.2f} s, {found.figures} figures, {len(found.problems)} problems")


if __name__ == "__main__":
    main()
