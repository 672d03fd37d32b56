"""A hundred builds a night x twenty models x ten tasks: where time, storage and the index go, and what queries take.

python -m benchmarks.simulate_scale --out benchmarks/results/scale.json   # 10^7 answers: 20 minutes of two cores, 3 GB
python -m benchmarks.simulate_scale --samples 100000 --builds 2           # a look
python -m benchmarks.simulate_scale --render docs/SCALE.md                # fill the page's table from the JSON

Makes one night (scale_night.py) in a temporary folder, two runs at a time, each compacted as soon as it is sealed. Then
the index, the dashboard and the questions of a morning, each in a process of its own, so that its start and its peak
memory are its own. The other nights of the ninety are this night's index under other dates.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scale_night import ARMS, MODELS, NIGHT, SOURCES, Job, evaluate, warm_up
from evalharness.watch.history import INDEX, read_history

RESULT = Path(__file__).parent / "results" / "scale.json"
NIGHTS = 90
SUBSETS = (4, 2, 1)  # the index over a quarter, a half and all of the runs: is it linear?
BLOCK = re.compile(r"(<!-- scale -->\n).*?(<!-- /scale -->)", re.DOTALL)
Figures = dict[str, Any]


def make_night(folder: Path, builds: int, documents: int, workers: int) -> Figures:
    """Every run of the night; sums over the runs, and the time the whole took."""
    jobs = [Job(folder, build, model, documents) for build in range(builds) for model in range(MODELS)]
    began, total, peak = time.perf_counter(), Figures(), 0.0
    with multiprocessing.Pool(workers, warm_up) as pool:
        for number, one in enumerate(pool.imap_unordered(evaluate, jobs), start=1):
            peak = max(peak, one.pop("peak"))
            for name, value in one.items():
                total[name] = total.get(name, 0) + value
            if number % 100 == 0:
                print(f"{number} of {len(jobs)} runs, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return {**total, "runs": len(jobs), "seconds": time.perf_counter() - began, "worker peak MiB": peak}


def timed_index(folder: Path) -> Figures:
    """Seconds to make or refresh the index of `folder`, and the peak memory of this process."""
    began = time.perf_counter()
    entries = read_history(folder)
    seconds = time.perf_counter() - began
    return {"runs": len(entries), "seconds": seconds, "peak MiB": peak_of(resource.RUSAGE_SELF)}


def peak_of(who: int) -> float:
    """Peak resident memory in MiB of this process, or of the largest child that has ended."""
    return resource.getrusage(who).ru_maxrss / 1024


def apart(folder: Path) -> Figures:
    """`timed_index` in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(timed_index, folder).result()


def index_figures(night: Path, scratch: Path) -> list[Figures]:
    """The index over parts of the night (links to its runs): first, unchanged, and with one new run."""
    runs, found = sorted(path for path in night.iterdir() if path.is_dir()), []
    for part in SUBSETS:
        folder = scratch / f"part{part}" if part > 1 else night
        if part > 1:
            folder.mkdir()
            for run in runs[: len(runs) // part]:
                (folder / run.name).symlink_to(run)
        first, again = apart(folder), apart(folder)
        (runs[0] / "comparison.json").touch()
        changed = apart(folder)
        size = (folder / INDEX).stat().st_size
        found.append({"first": first, "again": again, "one changed": changed, "bytes": size})
    return found


def command(*arguments: str) -> Figures:
    """A command of the harness: wall seconds, start included, and the lines it printed."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "evalharness", *arguments], check=True, capture_output=True, text=True)
    return {"seconds": time.perf_counter() - began, "lines": done.stdout.count("\n")}


def dashboard_figures(night: Path, site: Path) -> Figures:
    """The site over the night: first, again, its memory and its largest page."""
    first = command("dashboard", "build", "--results", str(night), "--out", str(site))
    again = command("dashboard", "build", "--results", str(night), "--out", str(site))
    pages = {path: path.stat().st_size for path in site.rglob("*.html")}
    largest = max(pages, key=lambda path: pages[path])
    return {
        "first": first["seconds"],
        "again": again["seconds"],
        "peak MiB": peak_of(resource.RUSAGE_CHILDREN),
        "pages": len(pages),
        "largest page": largest.relative_to(site).parts[0],
        "largest page bytes": pages[largest],
        "site bytes": sum(path.stat().st_size for path in site.rglob("*") if path.is_file()),
    }


def make_archive(night: Path, archive: Path) -> None:
    """Ninety nights: the index of the one there is, under other dates."""
    table = pq.ParquetFile(night / INDEX).read()
    place = table.schema.get_field_index("created")
    for back in range(NIGHTS):
        day = (NIGHT - timedelta(days=back)).date().isoformat()
        created = [day + at[10:] for at in table["created"].to_pylist()]
        folder = archive / day
        folder.mkdir(parents=True)
        dated = table.set_column(place, "created", pa.array(created)).replace_schema_metadata(table.schema.metadata)
        pq.write_table(dated, folder / INDEX)


def query_figures(archive: Path) -> Figures:
    """The two questions of a morning, as commands."""
    asked = ("history", "--results", str(archive), "--csv")
    one = ("--model", "model-07", "--task", "task-03", "--arm", "native")
    return {
        f"one figure over {NIGHTS} nights": command(*asked, "--nights", str(NIGHTS), *one),
        "one figure last night": command(*asked, "--nights", "1", *one),
        "what failed last night": command(*asked, "--nights", "1", "--failed"),
        "archive bytes": sum(path.stat().st_size for path in archive.rglob("*") if path.is_file()),
    }


def simulate(samples: int, builds: int, workers: int, scratch: Path) -> Figures:
    """All of it; the figures as plain data."""
    documents = samples // (builds * MODELS * len(SOURCES) * len(ARMS))
    night = scratch / "night"
    night.mkdir()
    made = make_night(night, builds, documents, workers)
    size = {"builds": builds, "models": MODELS, "tasks": len(SOURCES), "arms": len(ARMS), "documents": documents}
    index = index_figures(night, scratch)
    site = dashboard_figures(night, scratch / "site")
    make_archive(night, scratch / "archive")
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    queries = query_figures(scratch / "archive")
    return {"size": size, "machine": machine, "night": made, "index": index, "dashboard": site, "queries": queries}


# --- the page -------------------------------------------------------------------------------------------------


def render(found: Figures) -> str:
    """The table of docs/SCALE.md."""
    night, size = found["night"], found["size"]
    rows = [*_night_rows(night), *_index_rows(found["index"]), *_page_rows(found), *_query_rows(found["queries"])]
    head = (
        f"{night['samples']:,} answers in {night['runs']:,} runs: {size['builds']} builds x {size['models']} models, "
        f"each {size['tasks']} tasks x {size['arms']} arms x {size['documents']} documents. Two processes on "
        f"{found['machine']['cores']} shared cores needed {night['seconds'] / 60:.0f} minutes. Times are of the "
        "processor unless called wall.\n"
    )
    return "\n".join([head, "| what | each | together |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])


def _night_rows(night: Figures) -> Iterable[tuple[str, str, str]]:
    count, runs = night["samples"], night["runs"]
    for step, words in (
        ("write", "write: append and fsync, 20 files a run"),
        ("compare", "compare, from JSON lines"),
        ("seal", "seal: tables, policy, manifest"),
        ("compact", "compact, with its proof"),
    ):
        wall = f" ({night[f'wall {step}'] / count * 1e6:.0f} wall)"
        yield words, f"{night[step] / count * 1e6:.0f} us{wall} an answer", f"{night[step] / 60:.1f} min a night"
    for step in ("compare packed", "verify packed"):
        each = night[step] / night["checked"]
        yield f"{step} ({night['checked']} runs)", f"{each * 1e3:.0f} ms a run", f"{each * runs / 60:.1f} min a night"
    yield "answers as JSON lines", f"{night['raw'] / count:.0f} B", f"{night['raw'] / 1e9:.2f} GB"
    yield "answers compacted", f"{night['packed'] / count:.0f} B", f"{night['packed'] / 1e9:.2f} GB"
    yield "manifest (a hash of each line)", f"{night['manifest'] / count:.0f} B", f"{night['manifest'] / 1e9:.2f} GB"
    for when, words in (("loose", "disk, before compaction"), ("packed", "disk, after compaction")):
        inodes, disk = night[f"inodes {when}"], night[f"disk {when}"]
        each = f"{disk / runs / 1e6:.2f} MB, {inodes / runs:.0f} inodes a run"
        yield words, each, f"{disk / 1e9:.2f} GB, {inodes:,} inodes"
    yield "peak memory of a worker", f"{night['worker peak MiB']:.0f} MiB", ""


def _index_rows(parts: Sequence[Figures]) -> Iterable[tuple[str, str, str]]:
    for part in parts:
        first = part["first"]
        again, changed = (part[name]["seconds"] for name in ("again", "one changed"))
        took = f"{first['seconds']:.1f} s first, {again:.2f} s unchanged, {changed:.2f} s one changed"
        size = f"{part['bytes'] / 1e6:.1f} MB, {first['peak MiB']:.0f} MiB of memory"
        yield f"index of {first['runs']:,} runs, wall", took, size


def _page_rows(found: Figures) -> Iterable[tuple[str, str, str]]:
    site = found["dashboard"]
    yield (
        "dashboard of the night",
        f"{site['first']:.0f} s first, {site['again']:.0f} s again",
        f"{site['peak MiB']:.0f} MiB",
    )
    largest = f"{site['largest page bytes'] / 1e6:.2f} MB ({site['largest page']})"
    yield f"its {site['pages']:,} pages", f"{site['site bytes'] / 1e6:.0f} MB", f"largest {largest}"


def _query_rows(queries: Figures) -> Iterable[tuple[str, str, str]]:
    for words, one in queries.items():
        if isinstance(one, dict):
            yield f"{words}, wall", f"{one['seconds']:.1f} s, start included", f"{one['lines'] - 1:,} rows"


def main() -> None:
    """Simulate and write the JSON, or fill a page from it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--builds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--render", type=Path, metavar="PAGE", help="fill the page's table from the committed JSON")
    chosen = parser.parse_args()
    if chosen.render:
        table = render(json.loads(RESULT.read_text(encoding="utf-8")))
        page = chosen.render.read_text(encoding="utf-8")
        chosen.render.write_text(BLOCK.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        found = simulate(chosen.samples, chosen.builds, chosen.workers, Path(folder))
    print(render(found))
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
