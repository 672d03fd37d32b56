"""schedule.yaml: which profile runs when, whom to tell, what to keep."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from evalharness.errors import SpecError, first_fault
from evalharness.spec import NAME, Part
from evalharness.store import replace_file

FILE: Final = "schedule.yaml"
WEEK: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class Job(Part):
    """One scheduled profile. A night is due at `at` (UTC) on `days`, late after `grace_hours`, stopped after
    `timeout_hours`. Jobs that share a `lock` never run side by side. Nights before `since` are not missed."""

    name: str = Field(pattern=NAME)
    profile: str
    at: str = Field(default="02:00", pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
    days: tuple[Day, ...] = Field(default=WEEK, min_length=1)
    grace_hours: float = Field(default=2.0, gt=0, le=24)
    timeout_hours: float = Field(default=6.0, gt=0, le=48)
    lock: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    settings: tuple[str, ...] = ()
    since: datetime | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_from_profile(cls, value: object) -> object:
        if isinstance(value, dict) and "name" not in value and isinstance(value.get("profile"), str):
            return {**value, "name": Path(value["profile"]).name.removesuffix(".yaml").removesuffix(".yml")}
        return value

    @field_validator("at", mode="before")
    @classmethod
    def _clock_from_yaml(cls, value: object) -> object:
        """YAML reads an unquoted 12:30 as a number to the base of 60."""
        is_clock = isinstance(value, int) and 0 <= value < 24 * 60
        return f"{value // 60:02}:{value % 60:02}" if is_clock and isinstance(value, int) else value

    @field_validator("since")
    @classmethod
    def _utc(cls, value: datetime | None) -> datetime | None:
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)

    @property
    def lock_name(self) -> str:
        """What the job's lock is called."""
        return self.lock or self.name

    @property
    def grace(self) -> timedelta:
        """How long after the due time a night may start."""
        return timedelta(hours=self.grace_hours)

    @property
    def timeout(self) -> timedelta:
        """How long a night may take."""
        return timedelta(hours=self.timeout_hours)

    def due(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Due times in [start, end], oldest first."""
        clock = time.fromisoformat(self.at)
        day = start.astimezone(UTC).date()
        while (moment := datetime.combine(day, clock, UTC)) <= end:
            if moment >= start and WEEK[day.weekday()] in self.days:
                yield moment
            day += timedelta(days=1)

    def next_due(self, after: datetime) -> datetime:
        """The first due time later than `after`."""
        return next(self.due(after + timedelta(seconds=1), after + timedelta(days=8)))


class Alerts(Part):
    """Where alerts go; any of them may be left out. `webhook_env` names the variable that holds the URL, so
    that a secret need not be in the file. `command` gets the alert as JSON on its standard input."""

    webhook: str | None = Field(default=None, pattern=r"^https?://")
    webhook_env: str | None = None
    command: tuple[str, ...] = ()
    file: Path | None = None


class Retention(Part):
    """Samples older than `sample_days` go, but never those of the `keep_runs` newest runs of a profile, of its
    last good run, or of a published run. Records and comparisons always stay. Samples of runs that finished more
    than `compact_days` ago are packed (None: they stay as they are)."""

    sample_days: int = Field(default=30, ge=1)
    compact_days: float | None = Field(default=None, ge=0)
    keep_runs: int = Field(default=7, ge=1)
    log_days: int = Field(default=90, ge=1)


class Schedule(Part):
    """The whole file. `site` is rebuilt after every night; `textfile` is where Prometheus' node exporter reads;
    `repository` is a git checkout of the evaluated build, from which an alert lists the commits between."""

    jobs: tuple[Job, ...] = ()
    alerts: Alerts = Alerts()
    retention: Retention = Retention()
    site: Path | None = None
    textfile: Path | None = None
    repository: Path | None = None

    @model_validator(mode="after")
    def _names_are_unique(self) -> Schedule:
        names = [job.name for job in self.jobs]
        if len(set(names)) != len(names):
            raise ValueError("two jobs share a name; give one of them a `name` of its own")
        return self

    def job(self, name: str) -> Job | None:
        """The job of this name or profile."""
        return next((job for job in self.jobs if name in {job.name, job.profile}), None)


def load_schedule(path: Path) -> Schedule:
    """Read a schedule; an empty one where there is no file.

    Raises:
        SpecError: not YAML, an unknown key, a value out of range; names it.
    """
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Schedule()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"Cannot read {path}: {' '.join(str(error).split())}.", "Correct the file.") from error
    try:
        return Schedule.model_validate(raw or {})
    except ValidationError as error:
        key, fault = first_fault(error)
        raise SpecError(f"{path}, {key or 'schedule'}: {fault}.", "Correct it in the file.") from error


def plain_job(job: Job) -> dict[str, Any]:
    """The job as it stands in the file: what is not the default."""
    return job.model_dump(mode="json", exclude_defaults=True)


def add_job(path: Path, job: Job) -> Schedule:
    """Write `job` into the file, unless it is there as it is.

    Raises:
        SpecError: the file has another job of this name, which only its owner may change.
    """
    schedule = load_schedule(path)
    present = schedule.job(job.name)
    if present is not None:
        if present.model_copy(update={"since": job.since}) != job:
            raise SpecError(f"{path} schedules {job.name} otherwise.", "Change it there, or leave the options out.")
        return schedule
    raw = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    raw = dict(raw or {})
    raw["jobs"] = [*raw.get("jobs", ()), plain_job(job)]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, yaml.safe_dump(raw, sort_keys=False).encode())
    return load_schedule(path)
