"""`evalharness dashboard build` over ten to a thousand runs of three arms and two tasks, and again after one new run.

Every build is a process of its own. Its floor parses the records that a build reads, and writes as many bytes as the
site has.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.bench_report import size_row
from benchmarks.measure import Figures, Spent, evalharness, growth, main, part

SIZES = (10, 100, 1_000)


def dashboard_figures() -> list[Figures]:
    """Growth of the first build, and of one after a new run."""
    first, again = [], []
    for runs in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            results, site = Path(scratch) / "results", Path(scratch) / "site"
            newest = Path(part("bench_dashboard", "make", results, runs)[1]["newest"])
            apart = Path(scratch) / newest.name
            newest.rename(apart)
            all_new = _build(results, site)
            apart.rename(newest)
            one_new = _build(results, site)
            floor = part("bench_dashboard", "parse", results, site)[0]
            first.append(size_row(runs - 1, all_new, floor))
            again.append(size_row(runs, one_new, floor))
    return [growth("dashboard build", "runs", first), growth("dashboard build, one new run", "runs", again)]


def _build(results: Path, site: Path) -> Spent:
    return evalharness("dashboard", "build", "--results", results, "--out", site)


# --- in processes of their own --------------------------------------------------------------------------------


def make(results: str, runs: str) -> Figures:
    """A synthetic history of `runs` nights, and the schedule they were due by; the newest run's folder."""
    from scripts.make_history import PROFILE, History, Story

    folder = Path(results)
    made = History(folder, Story(int(runs)), keep_samples=min(int(runs), 30)).write()
    (folder / "schedule.yaml").write_text(f"jobs: [{{profile: {PROFILE}, at: '02:00'}}]\n", encoding="utf-8")
    return {"newest": str(folder / made[-1])}


def parse(results: str, site: str) -> Figures:
    """Parse every run's record and comparison, and write the site's bytes to another file."""
    size = sum(path.stat().st_size for path in Path(site).rglob("*") if path.is_file())
    for name in ("run.json", "comparison.json"):
        for path in Path(results).glob(f"*/{name}"):
            json.loads(path.read_bytes())
    with tempfile.TemporaryFile() as file:
        file.write(bytes(size))
    return {"bytes": size}


if __name__ == "__main__":
    main({"make": make, "parse": parse})
