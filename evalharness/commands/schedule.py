"""Scheduled nights."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from evalharness.errors import SpecError, first_fault
from evalharness.schedule.night import command, look_after, run_night
from evalharness.schedule.render import IMAGE, plan
from evalharness.schedule.render import render as render_files
from evalharness.spec import load_spec
from evalharness.watch.jobs import FILE, Job, Schedule, add_job, load_schedule

console = Console(highlight=False, soft_wrap=True, stderr=True)


@dataclass(frozen=True, slots=True)
class When:
    """The options that say when a night is due; None leaves the schedule's value."""

    at: str | None = None
    days: str | None = None
    grace: float | None = None
    timeout: float | None = None


def render(target: str, profile: str, when: When, results: Path, write: Path | None, image: str | None) -> int:
    """Enter the job into the schedule, then print or write the files of `target`."""
    path = results / FILE
    job = _job(load_schedule(path), profile, when)
    files = render_files(target, plan(job, results, image or IMAGE))
    add_job(path, job)
    console.print(f"{path}: {job.name} is due at {job.at} UTC on {', '.join(job.days)}", markup=False)
    if write is None:
        print("\n".join(f"# --- {name}\n{text}" for name, text in files.items()), end="")
        return 0
    write.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (write / name).write_text(text, encoding="utf-8")
        console.print(f"written {write / name}", markup=False)
    return 0


def run(profile: str, results: Path, config: Path | None, *, dry_run: bool) -> int:
    """Run a night, or say what it would do."""
    schedule = load_schedule(config or results / FILE)
    job = schedule.job(profile)
    if job is None:
        job = _job(schedule, profile, When())
        console.print(f"{profile} is not in the schedule: a night that does not come will not be missed", markup=False)
    plan(job, results)
    if dry_run:
        console.print(f"would run: {' '.join(command(job, results))}", markup=False)
        console.print(f"next due: {job.next_due(datetime.now(UTC)):%Y-%m-%d %H:%M} UTC", markup=False)
        return check(results, config, dry_run=True)
    return run_night(job, schedule, results, _tell)


def check(results: Path, config: Path | None, *, dry_run: bool) -> int:
    """Look for nights that did not come; alert, prune and rebuild as after a night."""
    problems = look_after(load_schedule(config or results / FILE), results, _tell, dry_run=dry_run)
    return 5 if problems else 0


def _job(schedule: Schedule, profile: str, when: When) -> Job:
    """The job in the schedule, or one from the options."""
    given = {
        "at": when.at,
        "days": tuple(when.days.split(",")) if when.days else None,
        "grace_hours": when.grace,
        "timeout_hours": when.timeout,
    }
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    present = schedule.job(profile)
    try:
        if present is not None:
            return Job.model_validate({**present.model_dump(), **chosen})
        since = datetime.now(UTC).replace(microsecond=0)
        return Job.model_validate({"name": load_spec(profile).name, "profile": profile, "since": since, **chosen})
    except ValidationError as error:
        key, fault = first_fault(error)
        raise SpecError(f"Schedule of {profile}, {key}: {fault}.", "Correct the option.") from error


def _tell(text: str) -> None:
    console.print(text, markup=False)
