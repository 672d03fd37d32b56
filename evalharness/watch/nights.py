"""A series of runs seen as nights: what was due and did not come is a red night, not a gap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from evalharness.watch.history import Entry, readable
from evalharness.watch.jobs import Job, Schedule

EARLY: Final = timedelta(minutes=10)  # a timer may fire a little before its time
UNSCHEDULED_TIMEOUT: Final = timedelta(hours=12)


class Status(StrEnum):
    """A verdict word, or why there is none."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    INCONCLUSIVE = "INCONCLUSIVE"
    RUNNING = "RUNNING"
    FAIL = "FAIL"
    INVALID = "INVALID"
    ERROR = "ERROR"
    LATE = "LATE"
    MISSING = "MISSING"
    UNFINISHED = "UNFINISHED"

    @property
    def tone(self) -> str:
        """`good`, `warn`, `busy` or `bad`: how a page colours it."""
        return {"PASS": "good", "INCONCLUSIVE": "warn", "RUNNING": "busy"}.get(self.value, "bad")

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look."""
        return self.tone == "bad"


@dataclass(frozen=True, slots=True)
class Night:
    """One run, or the due time at which there was none. `why` says what is wrong with it, if anything."""

    at: datetime
    status: Status
    entry: Entry | None = None
    why: str = ""

    def of(self, task: str) -> Status:
        """The status on one task: the task's own verdict where the run was on time and has one."""
        if self.entry is None or self.status in {Status.LATE, Status.RUNNING, Status.UNFINISHED}:
            return self.status
        verdict = next((score.task_verdict for score in self.entry.of(task)), None)
        return Status(verdict) if verdict else Status.ERROR


@dataclass(frozen=True, slots=True)
class Series:
    """Runs of one profile, engine and model, oldest first, with the nights that should have been there."""

    profile: str
    engine: str
    model: str
    nights: tuple[Night, ...]
    job: Job | None = None

    @property
    def tasks(self) -> list[str]:
        """Every task that a run of the series had, those of the newest run first."""
        runs = [night.entry for night in reversed(self.nights) if night.entry is not None]
        return list(dict.fromkeys(task for entry in runs for task in entry.tasks))

    @property
    def last(self) -> Night:
        """The newest night."""
        return self.nights[-1]

    @property
    def last_run(self) -> Entry | None:
        """The newest run that has a comparison."""
        compared = (night.entry for night in reversed(self.nights) if night.entry and night.entry.scores)
        return next(compared, None)


def series(entries: Iterable[Entry], schedule: Schedule, now: datetime) -> list[Series]:
    """Group runs into series and judge every night by its job's due times."""
    grouped: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in sorted(readable(entries), key=lambda e: e.created):
        grouped.setdefault(entry.series, []).append(entry)
    newest = {key[0]: key for key, _ in sorted(grouped.items(), key=lambda item: item[1][-1].created)}
    found = []
    for key, runs in grouped.items():
        job = schedule.job(key[0]) if newest[key[0]] == key else None
        found.append(Series(*key, tuple(nights(runs, job, now)), job))
    found += [_never_ran(job, now) for job in schedule.jobs if job.name not in newest and job.since is not None]
    return sorted((s for s in found if s.nights), key=lambda s: (s.profile, s.model))


def _never_ran(job: Job, now: datetime) -> Series:
    return Series(job.name, "", "", tuple(nights([], job, now)), job)


def nights(runs: Sequence[Entry], job: Job | None, now: datetime) -> Iterator[Night]:
    """Runs and missed due times in the order of time."""
    found = [_night(entry, job, now) for entry in runs]
    if job is not None:
        late, missed = _missed(runs, job, now)
        found = [_late(night, job) if night.entry and night.entry.folder in late else night for night in found]
        found += [Night(due, Status.MISSING, None, f"no run started by {due + job.grace:%H:%M} UTC") for due in missed]
    yield from sorted(found, key=lambda night: night.at)


def _night(entry: Entry, job: Job | None, now: datetime) -> Night:
    if entry.finished is None:
        if entry.problem:
            return Night(entry.at, Status.UNFINISHED, entry, entry.problem)
        limit = job.timeout if job else UNSCHEDULED_TIMEOUT
        if now - entry.at <= limit:
            return Night(entry.at, Status.RUNNING, entry, "still running")
        return Night(entry.at, Status.UNFINISHED, entry, f"did not finish within {limit.total_seconds() / 3600:g} h")
    if entry.state != "compared":
        return Night(entry.at, Status.UNFINISHED, entry, "finished without a comparison")
    return Night(entry.at, Status(entry.verdict), entry, " ".join(entry.reasons))


def _late(night: Night, job: Job) -> Night:
    """A good run that came too late is still a broken promise."""
    if night.status.is_bad:
        return night
    return Night(night.at, Status.LATE, night.entry, f"started more than {job.grace_hours:g} h after {job.at} UTC")


def _missed(runs: Sequence[Entry], job: Job, now: datetime) -> tuple[set[str], list[datetime]]:
    """Folders of runs that came late, and due times nothing came for.

    A due time owns the runs from shortly before it until shortly before the next; the first of them answers it.
    """
    start = job.since or (min(e.at for e in runs) - job.grace if runs else now)
    dues = list(job.due(start, now))
    late, missed, position = set(), [], 0
    for due, following in pairwise([*dues, now + EARLY + timedelta(seconds=1)]):
        while position < len(runs) and runs[position].at < due - EARLY:
            position += 1
        first = runs[position] if position < len(runs) and runs[position].at < following - EARLY else None
        if first is None:
            if now > due + job.grace:
                missed.append(due)
        elif first.at > due + job.grace:
            late.add(first.folder)
    return late, missed
