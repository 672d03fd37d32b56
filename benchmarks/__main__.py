"""Every benchmark that needs no GPU, in one go: its figures as JSON, and the tables of docs/PERFORMANCE.md.

    python -m benchmarks --out benchmarks/results/performance.json   # ten minutes of two quiet cores, 2 GB of disk
    python -m benchmarks --only start emulated                       # a look
    python -m benchmarks --render docs/PERFORMANCE.md                # fill the page's tables from the committed JSON

The exit status is 1 when a ratio is over its limit or something grows faster than its size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_compare import compare_figures
from benchmarks.bench_dashboard import dashboard_figures
from benchmarks.bench_report import report_figures
from benchmarks.bench_run import harness_figures
from benchmarks.bench_start import start_figures
from benchmarks.measure import Figures, part
from benchmarks.performance_page import faults, fill, tables

PARTS: dict[str, Callable[[argparse.Namespace], object]] = {
    "ratios": lambda options: harness_figures(options.documents, options.rounds),
    "start": lambda _: start_figures(),
    "growth": lambda _: [*compare_figures(), *report_figures(), *dashboard_figures()],
    "emulated": lambda _: part("bench_emulated")[1],
}


def measured(options: argparse.Namespace) -> Figures:
    """The figures of the parts asked for, and what they were measured on."""
    began, before, found = time.perf_counter(), os.getloadavg()[0], Figures()
    for name in options.only or PARTS:
        since = time.perf_counter()
        found[name] = PARTS[name](options)
        print(f"{name}: {time.perf_counter() - since:.0f} s", file=sys.stderr)
    machine = {
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in (before, os.getloadavg()[0])],
        "python": platform.python_version(),
        "minutes": round((time.perf_counter() - began) / 60, 1),
    }
    return {"machine": machine, "documents": options.documents, **found}


def main() -> int:
    """Measure and print, or fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts; all when left out")
    parser.add_argument("--documents", type=int, default=100, help="asked of each arm by `ratios`")
    parser.add_argument("--rounds", type=int, default=1, help="how often `ratios` runs everything")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--render", type=Path, metavar="PAGE", help="fill the page's tables from the committed JSON")
    options = parser.parse_args()
    if options.render:
        options.render.write_text(fill(options.render.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    found = measured(options)
    for table in tables(found).values():
        print(table, end="\n\n")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for fault in faults(found):
        print(fault, file=sys.stderr)
    return int(bool(faults(found)))


if __name__ == "__main__":
    sys.exit(main())
