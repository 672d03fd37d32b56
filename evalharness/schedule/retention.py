"""Old answers are packed, older ones go, records stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from evalharness.compaction import compact
from evalharness.errors import EvalHarnessError
from evalharness.store import PRUNED, RunFolder
from evalharness.watch.history import Entry
from evalharness.watch.jobs import Retention
from evalharness.watch.nights import Series, Status

SAMPLES = "samples"


def prunable(found: Sequence[Series], entries: Iterable[Entry], policy: Retention, now: datetime) -> list[Entry]:
    """Runs whose sample files may go, oldest first: compared, older than the policy's days, and neither published,
    nor among the newest of their series, nor the last good one of it."""
    published = {entry.run_id for entry in entries if entry.published}
    old = now - timedelta(days=policy.sample_days)
    chosen = []
    for one in found:
        runs = [night.entry for night in one.nights if night.entry is not None]
        kept = {entry.run_id for entry in runs[-policy.keep_runs :]} | published
        kept |= {next((entry.run_id for entry in reversed(runs) if entry.verdict == Status.PASS.value), "")}
        chosen += [e for e in runs if e.state == "compared" and e.at < old and e.run_id not in kept]
    return sorted(chosen, key=lambda entry: entry.created)


def compactable(results: Path, entries: Iterable[Entry], policy: Retention, now: datetime) -> list[RunFolder]:
    """Runs whose samples are to be packed: finished long enough ago, not published, and not packed yet."""
    if policy.compact_days is None:
        return []
    latest = now - timedelta(days=policy.compact_days)
    old = [e for e in entries if not e.published and e.finished and datetime.fromisoformat(e.finished) <= latest]
    folders = [RunFolder(results / entry.folder) for entry in old]
    return [folder for folder in folders if (folder.path / SAMPLES).is_dir()]


def pack(folders: Iterable[RunFolder]) -> tuple[list[str], list[str]]:
    """Pack their samples; returns the ids of those packed, and why another one was not."""
    packed, refused = [], []
    for folder in folders:
        try:
            packed.append(compact(folder).run_id)
        except EvalHarnessError as error:
            refused.append(f"{folder.path.name} was not compacted: {error}")
    return packed, refused


def has_answers(folder: RunFolder) -> bool:
    """Whether there are sample files to delete, packed or not."""
    return (folder.path / SAMPLES).is_dir() or folder.packed.exists()


def prune(results: Path, chosen: Iterable[Entry], now: datetime) -> list[str]:
    """Delete the sample files of these runs and say so in their folders; returns the ids of those that had any."""
    pruned = []
    for entry in chosen:
        folder = RunFolder(results / entry.folder)
        if has_answers(folder):
            folder.write_text(PRUNED, f"The answers were deleted on {now:%Y-%m-%d} by the retention policy.\n")
            folder.packed.unlink(missing_ok=True)
            if (folder.path / SAMPLES).is_dir():
                shutil.rmtree(folder.path / SAMPLES)
            pruned.append(entry.run_id)
    return pruned


def prune_logs(folder: Path, policy: Retention, now: datetime) -> None:
    """Delete logs of scheduled nights older than the policy's days."""
    limit = (now - timedelta(days=policy.log_days)).timestamp()
    for path in folder.glob("*.log"):
        if path.stat().st_mtime < limit:
            path.unlink(missing_ok=True)
