"""Runs in progress, as the live page shows them: read from the run folders, never from the processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from evalharness.errors import EvalHarnessError
from evalharness.records import Run
from evalharness.store import RunFolder, list_runs
from evalharness.watch.history import STOPPED

TAIL_BYTES: Final = 12_000
TAIL_LINES: Final = 40
NEWEST: Final = 12  # folders looked at
FORGOTTEN: Final = timedelta(days=2)
ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def live(results: Path) -> dict[str, Any]:
    """JSON data of the runs that have not finished, newest first."""
    folders = list(reversed(list_runs(results)))[:NEWEST]
    runs = [found for folder in folders if (found := _progress(folder)) is not None]
    return {"results": results.name, "now": f"{datetime.now(UTC):%H:%M:%S} UTC", "runs": runs}


def _progress(path: Path) -> dict[str, Any] | None:
    folder = RunFolder(path)
    try:
        run = folder.read_run()
        is_old = datetime.now(UTC) - datetime.fromisoformat(run.created) > FORGOTTEN
    except (EvalHarnessError, ValueError, TypeError):
        return None
    if run.finished is not None or is_old:
        return None
    log = _newest_log(path)
    return {
        "run_id": path.name,
        "running": _is_running(path),
        "arms": [
            {
                "name": arm.name,
                "state": arm.state.value,
                "message": arm.message,
                "done": _answers(path, arm.name),
                "asked": _asked(run),
            }
            for arm in run.arms
        ],
        "log": _tail(log) if log else "",
        "log_name": log.name if log else "",
    }


def _is_running(path: Path) -> bool:
    """Not stopped, or resumed since."""
    stopped = path / STOPPED
    return not stopped.exists() or (path / "run.json").stat().st_mtime > stopped.stat().st_mtime


def _asked(run: Run) -> int | None:
    """Answers an arm owes; None where a task asks every document it has."""
    tasks: list[Mapping[str, Any]] = list(run.spec.get("tasks", ()))
    limits = [task.get("limit") for task in tasks]
    if not all(isinstance(limit, int) for limit in limits):
        return None
    return sum(int(task["limit"]) * int(task.get("repeats", 1)) for task in tasks)


def _answers(path: Path, arm: str) -> int:
    """Whole lines of the arm's sample files."""
    files = (path / "samples").glob("*/*.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files if file.stem == arm)


def _newest_log(path: Path) -> Path | None:
    logs = sorted((path / "logs").glob("*.log"), key=lambda log: log.stat().st_mtime)
    return logs[-1] if logs else None


def _tail(log: Path) -> str:
    """The last lines, without colours and other control characters."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(ESCAPES.sub("", line) for line in text.splitlines()[-TAIL_LINES:])
