"""`evalharness compare` and `evalharness report` of stored runs of a thousand to a million answers.

Every command is a process of its own. Its floor reads the same lines and parses them as JSON, and does no more.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Figures, Spent, evalharness, growth, main, part

SIZES = (1_000, 10_000, 100_000, 1_000_000)
TASK = "gsm8k_canary"
DISTINCT = 300  # documents with answers of their own; larger runs repeat their texts under other ids


def report_figures() -> list[Figures]:
    """Growth of both commands."""
    rows: dict[str, list[Figures]] = {"compare": [], "report": []}
    for samples in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(part("bench_report", "make", scratch, samples)[1]["folder"])
            floor = part("bench_report", "parse", folder)[0]
            rows["compare"].append(size_row(samples, evalharness("compare", folder), floor))
            rows["report"].append(size_row(samples, evalharness("report", folder, "--format", "html,json"), floor))
    return [growth(f"{name} RUN", "answers", found) for name, found in rows.items()]


def size_row(n: int, used: Spent, floor: Spent) -> Figures:
    """One size of a growth."""
    return {"n": n, **used.figures(), "floor_s": round(floor.cpu, 3), "floor_mib": round(floor.peak, 1)}


# --- in processes of their own --------------------------------------------------------------------------------


def make(results: str, samples: str) -> Figures:
    """A finished run of three arms with `samples` answers together; its folder."""
    from tests.stored_runs import ARMS, stored_run

    documents = int(samples) // len(ARMS)
    folder = stored_run(Path(results), {TASK: (min(documents, DISTINCT), 1)})
    run = json.loads((folder.path / "run.json").read_text(encoding="utf-8"))
    run["spec"]["tasks"][0]["limit"] = documents
    (folder.path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    for arm in ARMS:
        path = folder.path / "samples" / TASK / f"{arm}.jsonl"
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_repeated(rows, documents))
    return {"folder": str(folder.path)}


def _repeated(rows: list[Figures], documents: int) -> Iterator[str]:
    """Lines of `documents` answers, the given ones again and again as answers to other documents."""
    parts = []
    for row in rows:
        text = json.dumps({**row, "doc_id": "@id", "doc_hash": "@hash"}, ensure_ascii=False, separators=(",", ":"))
        before, after = text.split('"@id"')
        parts.append((before, *after.split("@hash")))
    for number in range(documents):
        before, between, after = parts[number % len(parts)]
        yield f"{before}{number}{between}{hashlib.sha256(b'%d' % number).hexdigest()}{after}\n"


def parse(folder: str) -> Figures:
    """Read every answer's line and parse it."""
    count = 0
    for path in Path(folder).rglob("*.jsonl"):
        with path.open("rb") as file:
            for line in file:
                json.loads(line)
                count += 1
    return {"answers": count}


if __name__ == "__main__":
    main({"make": make, "parse": parse})
