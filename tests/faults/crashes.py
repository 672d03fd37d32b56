"""Kills a small run at seeded points, resumes it, and holds it against an unbroken one.

Four victims: the harness, the engine's child process, that child's worker, and the harness in the middle of writing a
line. `benchmarks/crash_safety.py` runs this 200 times; tests run it a few times.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness import store
from evalharness.assess import assess
from evalharness.engines import base, process
from evalharness.records import ArmState, Cause, Sample
from evalharness.runner import local, session
from evalharness.scoring import data
from evalharness.spec import RunSpec, parse_spec
from evalharness.store import RunFolder, list_runs

MARK = "EVALHARNESS_CRASH_TRIAL"
VICTIMS = ("harness", "child", "worker", "write")
LIVES = {"harness": 1.0, "child": 0.7, "worker": 0.4}  # shares of a run for which they are there
GONE_WITHIN_S = 10.0
Answers = dict[tuple[str, str, tuple[str, int, int]], tuple[Any, ...]]


@dataclass
class Tally:
    """What was done to the runs, and what became of them."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumes: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    processes_left: int = 0


def spec_for(model: Path) -> RunSpec:
    """Two arms, ten answers each."""
    return parse_spec(
        {
            "name": "crash",
            "engine": {"kind": "emulated", "model": str(model), "capture_sizes": [1, 2, 4]},
            "arms": ["eager", "patched"],
            "tasks": [
                {"name": "gsm8k_canary", "limit": 6, "max_tokens": 24},
                {"name": "aime25_canary", "limit": 2, "repeats": 2, "temperature": 0.6, "max_tokens": 24},
            ],
        }
    )


class Trials:
    """Runs and kills below `folder`; the unbroken run comes first."""

    def __init__(self, model: Path, folder: Path, seed: int) -> None:
        self.spec, self.folder, self.chance = spec_for(model), folder, random.Random(seed)
        self.tally = Tally()
        data.documents = functools.cache(data.documents)  # forks inherit what this process made
        began = time.monotonic()
        self.run(folder / "unbroken")
        self.seconds = time.monotonic() - began
        self.expected = answers(only_run(folder / "unbroken"))
        self.totals = totals(only_run(folder / "unbroken"))

    def trial(self, number: int) -> None:
        """One run, killed once or, one time in three, twice; then resumed to its end and checked."""
        results = self.folder / f"{number:04d}"
        self.tally.runs += 1
        for _ in range(self.chance.choice((1, 1, 2))):
            self.run(results, self.chance.choice(VICTIMS))
        while not finished(results):
            self.run(results)
        self.check(results, number)

    def run(self, results: Path, victim: str | None = None) -> None:
        """Start or resume the run in `results` in a process of its own; kill `victim` at a random point."""
        self.tally.resumes += bool(list_runs(results))
        write_number = self.chance.randrange(1, 6) if victim == "write" else 0
        pid = forked(lambda: serve(self.spec, results, write_number))
        if victim == "write":
            self.tally.kills["write"] += os.waitpid(pid, 0)[1] == signal.SIGKILL
        elif victim is not None:
            self._kill(pid, victim, self.chance.uniform(0, self.seconds * LIVES[victim]))
        else:
            status = os.waitpid(pid, 0)[1]
            assert status == 0, f"the harness ended with status {status}"
        self.tally.processes_left += len(left_over())

    def _kill(self, pid: int, victim: str, after_s: float) -> None:
        """Kill the victim `after_s` seconds after it appeared, unless the run is done before."""
        began, due = time.monotonic(), float("inf")
        while not os.waitpid(pid, os.WNOHANG)[0]:
            target = find(pid, victim)
            if target is not None:
                due = min(due, time.monotonic() + after_s)
                if time.monotonic() >= due and killed(target):
                    self.tally.kills[victim] += 1
                    os.waitpid(pid, 0)
                    return
            time.sleep(0.005)
        self.seconds = min(self.seconds, time.monotonic() - began)  # done before: aim earlier

    def check(self, results: Path, number: int) -> None:
        """Count what differs from the unbroken run."""
        folder = only_run(results)
        found, lines = answers(folder), Counter(key for key, _ in settled_lines(folder))
        self.tally.lost += len(self.expected.keys() - found.keys())
        self.tally.doubled += sum(count - 1 for count in lines.values())
        self.tally.changed += sum(found[key] != self.expected[key] for key in self.expected.keys() & found.keys())
        assert totals(folder) == self.totals, f"trial {number}: totals differ"
        assert not list(folder.path.rglob("*.tmp")), f"trial {number}: temporary files are left"


def serve(spec: RunSpec, results: Path, write_number: int = 0) -> None:
    """What a harness process does; `write_number` > 0 makes it die in the middle of that append."""
    os.environ[MARK] = str(os.getpid())
    base.ENGINES["emulated"] = ("tests.faults.worker_engine", "emulated, in a worker")
    session.FLUSH_SECONDS = 0.02
    process.STOP_S = 2.0
    process.FATAL_GRACE_S = 0.5
    if write_number:
        store._append_lines = dying_append(store._append_lines, write_number)
    runs = list_runs(results)
    local.resume(RunFolder(runs[-1])) if runs else local.start(spec, results)


def dying_append(append: Callable[[Path, list[str]], None], number: int) -> Callable[[Path, list[str]], None]:
    """`append` that writes half of its `number`-th call and dies."""
    calls = 0

    def append_or_die(path: Path, lines: list[str]) -> None:
        nonlocal calls
        calls += 1
        if calls < number:
            append(path, lines)
            return
        text = "\n".join(lines)
        with path.open("ab+") as file:
            store._drop_partial_line(file)
            file.write(text[: len(text) // 2].encode())
        os.kill(os.getpid(), signal.SIGKILL)

    return append_or_die


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a fork of this warm process; its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must not run on into the caller's code
        import traceback

        traceback.print_exc()
    os._exit(status)


def finished(results: Path) -> bool:
    """Whether every arm is done and the end is on record; a run killed while writing its end is still to be resumed."""
    runs = list_runs(results)
    run = RunFolder(runs[-1]).read_run() if runs else None
    return run is not None and run.finished is not None and all(arm.state is ArmState.DONE for arm in run.arms)


def only_run(results: Path) -> RunFolder:
    (path,) = list_runs(results)
    return RunFolder(path)


def settled_lines(folder: RunFolder) -> Iterator[tuple[tuple[str, str, tuple[str, int, int]], Sample]]:
    """Every whole line that is an answer, in the files as they lie on disk."""
    for path in sorted(folder.path.glob("samples/*/*.jsonl")):
        for line in store._whole_lines(path):
            sample = store.decode(Sample, line, path.name)
            if sample.cause is not Cause.ERROR:
                yield (sample.task, sample.arm, sample.key), sample


def answers(folder: RunFolder) -> Answers:
    return {key: (s.response, s.token_ids, s.scores, s.cause, s.finish_reason) for key, s in settled_lines(folder)}


def totals(folder: RunFolder) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Score, size and causes of every (task, arm) as the comparison has them."""
    comparison = assess(folder)
    return {
        (task.task, score.arm): (score.n, score.value, score.errors, dict(score.causes))
        for task in comparison.tasks
        for score in task.scores
    }


def find(harness: int, victim: str) -> int | None:
    """Pid of the victim among the harness's processes, once it runs."""
    if victim == "harness":
        return harness
    child = child_of(harness)
    if child is None or victim == "child":
        return child
    return child_of(child)


def killed(pid: int) -> bool:
    """Kill it; False: it had just ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def child_of(parent: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and parent_of(entry) == parent:
            return int(entry.name)
    return None


def parent_of(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return None


def left_over() -> list[int]:
    """Processes of a trial that outlive it by GONE_WITHIN_S."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (marked := list(marked_processes())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return marked


def marked_processes() -> Iterator[int]:
    """Live processes that a trial started (they inherited its mark)."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if state != "Z" and f"{MARK}=".encode() in environment:
            yield int(entry.name)
