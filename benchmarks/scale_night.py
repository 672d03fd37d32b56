"""The night that simulate_scale.py makes: every run of it through the real store, step by step.

A run is one (build, model): ten tasks under eager and native. Its answers, their texts, tokens and seconds are those
of the committed runs of the emulated engine and of vLLM, the seconds with jitter, a few answers replaced by the broken
ones of the stock arm.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from evalharness.assess import read_stored
from evalharness.compaction import compact
from evalharness.records import ArmState, ArmSummary, Comparison, Outcome, Run, Sample
from evalharness.seal import seal
from evalharness.store import RunFolder
from evalharness.verify import verify

PUBLISHED = Path(__file__).parents[1] / "results" / "published"


def newest(name: str) -> RunFolder:
    """The newest committed run of a spec."""
    return RunFolder(max(PUBLISHED.glob(f"*Z-{name}-????????")))


# (spec, task, first document): ten tasks of 250 documents, each with texts of its own.
SOURCES = [
    *(("canary-real", "gsm8k", first) for first in range(0, 1250, 250)),
    *(("canary-v3-gpu", "gsm8k_canary", first) for first in range(0, 1000, 250)),
    ("canary-v3", "gsm8k_canary", 0),
]
ARMS = ("eager", "native")
MODELS = 20
NIGHT = datetime(2026, 12, 1, tzinfo=UTC)
BAD_BUILDS = (37, 71)  # these lose answers in every model
NOISE, LOSS = 0.004, 0.3  # share of native's answers that come out broken, in other builds and in these
CHECKED = 40  # every so many runs are compared again from Parquet, and verified


@dataclass(frozen=True, slots=True)
class Job:
    """One run to be made in `night`, of `documents` a task."""

    night: Path
    build: int
    model: int
    documents: int


# --- answers --------------------------------------------------------------------------------------------------


@cache
def answers(task: int) -> list[tuple[Sample, Sample]]:
    """(right, broken) answers of one task's documents, as the committed runs gave them."""
    spec, name, first = SOURCES[task]
    folder = newest(spec)
    right = {s.key: s for s in folder.read_samples(name, "eager")}
    broken = {s.key: s for s in folder.read_samples(name, "stock")}
    pairs = [(right[key], broken[key]) for key in sorted(right, key=lambda key: key[1:])]
    return pairs[first:] + pairs[:first]


def samples(job: Job, task: int, arm: str) -> Iterator[Sample]:
    """The answers of one arm to one task."""
    rng = random.Random(f"{job.build} {job.model} {task} {arm}")
    share = 0.0 if arm == "eager" else LOSS if job.build in BAD_BUILDS else NOISE
    pairs = answers(task)
    for number in range(job.documents):
        right, broken = pairs[number % len(pairs)]
        chosen = broken if rng.random() < share else right
        seconds = chosen.seconds * rng.lognormvariate(0, 0.1)
        yield replace(chosen, task=task_name(task), arm=arm, doc_id=number, seconds=seconds)


def task_name(task: int) -> str:
    """`task-03`."""
    return f"task-{task:02}"


@cache
def template() -> tuple[Run, Mapping[str, Any]]:
    """Run and evidence of a committed run on vLLM."""
    folder = newest("canary-v3-gpu")
    return folder.read_run(), folder.read_evidence()


def record(job: Job) -> Run:
    """run.json of one (build, model), begun when its turn came."""
    run, _ = template()
    began = NIGHT + timedelta(minutes=14 * job.build)
    version = f"0.33.0.dev{job.build}+g{random.Random(job.build).randbytes(5).hex()[:9]}"
    tasks = [{"name": task_name(t), "limit": job.documents, "repeats": 1} for t in range(len(SOURCES))]
    model = f"model-{job.model:02}"
    return replace(
        run,
        name="nightly",
        created=began.isoformat(),
        finished=(began + timedelta(minutes=10)).isoformat(),
        fingerprint=random.Random(f"{job.model} {job.build}").randbytes(32).hex(),
        identity={f"task {task['name']}: questions": run.fingerprint for task in tasks},
        spec={**run.spec, "name": "nightly", "engine": {**run.spec["engine"], "model": model}, "tasks": tasks},
        provenance={**run.provenance, "packages": {**run.provenance["packages"], "vllm": version}},
        arms=tuple(ArmSummary(arm, arm, ArmState.DONE, job.documents * len(tasks), 100.0) for arm in ARMS),
    )


# --- a run ----------------------------------------------------------------------------------------------------


class Clock(dict[str, float]):
    """Processor seconds by what they were spent on, and wall seconds as `wall <what>`."""

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the time inside."""
        began, used = time.perf_counter(), time.process_time()
        yield
        self[what] = time.process_time() - used
        self[f"wall {what}"] = time.perf_counter() - began


def warm_up() -> None:
    """Load what a first run loads, so that no run is charged for it."""
    with tempfile.TemporaryDirectory() as folder:
        evaluate(Job(Path(folder), 0, 0, 4))


def evaluate(job: Job) -> dict[str, float]:
    """What a night does with one run; seconds of each step, bytes and files before and after."""
    clock = Clock()
    made = [list(samples(job, task, arm)) for task in range(len(SOURCES)) for arm in ARMS]
    with clock.on("write"):
        folder, _ = RunFolder.create(job.night, record(job))
        for rows in made:
            folder.append(rows)
        for arm in ARMS:
            folder.write_evidence(template()[1][arm])
    with clock.on("compare"):
        stored = read_stored(folder)
        comparison = stored.comparison
    with clock.on("seal"):
        seal(folder, stored, comparison)
    before = footprint(folder.path)
    with clock.on("compact"):
        done = compact(folder)
    if (job.build * MODELS + job.model) % CHECKED == 0:
        check(folder, comparison, clock)
    after = footprint(folder.path)
    sizes = {"checked": "verify packed" in clock, "samples": done.samples, "raw": done.before, "packed": done.after}
    sizes |= {
        "manifest": (folder.path / "manifest.json").stat().st_size,
        "lost": comparison.verdict.outcome is not Outcome.PASS,
    }
    for when, found in (("loose", before), ("packed", after)):
        sizes |= {f"{name} {when}": value for name, value in found.items()}
    return {**clock, **sizes, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def check(folder: RunFolder, comparison: Comparison, clock: Clock) -> None:
    """Compare a packed run again and verify it; both must say what they said before."""
    with clock.on("compare packed"):
        again = read_stored(folder).comparison
    with clock.on("verify packed"):
        problems = [p for p in verify(folder).problems if "is missing: write it" not in p]
    if again != comparison or problems:
        raise SystemExit(f"{folder.path.name} reads differently after compaction: {problems}")


def footprint(folder: Path) -> dict[str, int]:
    """Files and folders (inodes), and bytes of disk blocks."""
    found = [folder, *folder.rglob("*")]
    return {"inodes": len(found), "disk": sum(path.stat().st_blocks for path in found) * 512}
