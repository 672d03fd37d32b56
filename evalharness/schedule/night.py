"""One scheduled night: lock, run in a child under a timeout, then retention, alerts, site and metrics."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

from evalharness.engines.group import end_group, ended_how
from evalharness.errors import EvalHarnessError
from evalharness.records import Outcome
from evalharness.reports.dashboard import build
from evalharness.reports.dashboard.exports import prometheus
from evalharness.schedule.lock import Busy, exclusive
from evalharness.schedule.retention import compactable, has_answers, pack, prunable, prune, prune_logs
from evalharness.schedule.send import Delivery, deliver
from evalharness.store import RunFolder, replace_file
from evalharness.watch.events import Event, events
from evalharness.watch.history import STOPPED, Entry, read_history
from evalharness.watch.jobs import Job, Schedule
from evalharness.watch.nights import Series, series

FOLDER: Final = ".schedule"  # under results/: locks, logs, what was sent
KILL_AFTER_S: Final = 60  # between the request to stop and the end
REPORT_TIMEOUT_S: Final = 900
STOPS: Final = (signal.SIGTERM, signal.SIGINT)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Child:
    """How the run's process ended. `code` is None where it was stopped; `log` is what it printed."""

    code: int | None
    why: str
    log: Path

    @property
    def exit_code(self) -> int:
        """What the night returns: the verdict's code, or that of an infrastructure error."""
        return self.code if self.code is not None and self.code >= 0 else Outcome.ERROR.exit_code


def run_night(job: Job, schedule: Schedule, results: Path, tell: Tell = print) -> int:
    """Run one night of `job`; the exit code is the verdict's, and 0 when another night is going on."""
    try:
        with exclusive(results / FOLDER / f"{job.lock_name}.lock"):
            began = datetime.now(UTC)
            child = _run(job, results, began)
            tell(f"{child.why}; log: {child.log}")
            _mark_stopped(results, job, began, child)
            made = _made_run(results, job, began)
            lost = made is not None and made.finished is not None and not _sign_off(results, made, child.log, tell)
            failed = [] if made else [_without_run(job, began, child)]
            problems = look_after(schedule, results, tell, failed) or lost
            return child.exit_code or (Outcome.ERROR.exit_code if problems else 0)
    except Busy as busy:
        tell(f"another night holds the lock {job.lock_name} ({busy.holder}); nothing to do")
        return 0


def look_after(
    schedule: Schedule, results: Path, tell: Tell = print, failed: Sequence[Event] = (), *, dry_run: bool = False
) -> list[str]:
    """What follows a night, and what a watchman does between nights. A step that fails does not keep the others
    from being done; returns what went wrong."""
    now = datetime.now(UTC)
    entries = read_history(results)
    found = series(entries, schedule, now)
    all_events = [*failed, *(event for one in found for event in events(one, schedule.repository))]
    steps: dict[str, Callable[[], None]] = {
        "retention": lambda: _prune(found, entries, schedule, results, tell, dry_run=dry_run),
        "alerts": lambda: _alert(all_events, schedule, results, tell, dry_run=dry_run),
    }
    if not dry_run:
        steps["site"] = lambda: _build(schedule, results, now, tell)
        steps["metrics"] = lambda: _metrics(found, schedule, now)
    problems = []
    for name, step in steps.items():
        try:
            step()
        except (EvalHarnessError, OSError) as error:
            problems.append(f"{name}: {error}")
            tell(f"{name} failed: {error}")
    return problems


# --- the child ----------------------------------------------------------------------------------------------


def command(job: Job, results: Path) -> list[str]:
    """What the night runs."""
    settings = [word for setting in job.settings for word in ("--set", setting)]
    return [sys.executable, "-m", "evalharness", "run", job.profile, *settings, "--out", str(results)]


def report_command(entry: Entry, results: Path) -> list[str]:
    """What writes the sign-off report of a night's run."""
    words = ["report", entry.run_id, "--results", str(results), "--format", "html,json"]
    return [sys.executable, "-m", "evalharness", *words]


def _run(job: Job, results: Path, began: datetime) -> Child:
    log = results / FOLDER / "logs" / f"{job.name}-{began:%Y%m%dT%H%M%SZ}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this package, with the job's own words
            command(job, results), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        with _passing_on_stops():
            code, why = _wait(process, job)
    return Child(code, why, log)


def _wait(process: subprocess.Popen[bytes], job: Job) -> tuple[int | None, str]:
    try:
        code = process.wait(job.timeout.total_seconds())
    except subprocess.TimeoutExpired:
        _end(process)
        return None, f"stopped after {job.timeout_hours:g} h"
    except _Stopped as stop:
        _end(process)
        return None, f"stopped by {signal.Signals(stop.number).name}"
    return (code, f"ended with code {code}") if code >= 0 else (None, ended_how(code))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the child to save and stop, then end its whole group."""
    if not end_group(process, signal.SIGINT, KILL_AFTER_S):
        end_group(process, signal.SIGKILL, KILL_AFTER_S)


class _Stopped(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _passing_on_stops() -> Iterator[None]:
    """Turn a signal to this process into an exception, so that the child is ended too."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what became of it --------------------------------------------------------------------------------------


def _made_run(results: Path, job: Job, began: datetime) -> Entry | None:
    """The run that this night began, if it came that far."""
    stamp = began.replace(microsecond=0)
    own = [e for e in read_history(results) if e.profile == job.name and e.created and e.at >= stamp]
    return own[0] if own else None


def _mark_stopped(results: Path, job: Job, began: datetime, child: Child) -> None:
    """A run whose process is gone will not finish: say so in its folder, where every reader sees it."""
    entry = _made_run(results, job, began)
    if entry is not None and entry.finished is None:
        RunFolder(results / entry.folder).write_text(STOPPED, f"{child.why}\n")


def _sign_off(results: Path, entry: Entry, log: Path, tell: Tell) -> bool:
    """Write the run's report into its folder, where the site finds it; False where that failed."""
    try:
        with log.open("ab") as output:
            subprocess.run(  # noqa: S603 - this package
                report_command(entry, results), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                timeout=REPORT_TIMEOUT_S, check=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        pass
    written = (results / entry.folder / "signoff.html").exists()
    if not written:
        tell(f"no sign-off report was written; log: {log}")
    return written


def _without_run(job: Job, began: datetime, child: Child) -> Event:
    """The event of a night that ended before it had a run folder; there is no later sign of it but its log."""
    lines = child.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1][:300] if lines else "it printed nothing"
    return Event(
        id=f"ERROR:{job.name}:{began:%Y-%m-%d}",
        kind="ERROR",
        profile=job.name,
        task="",
        arm="",
        since=began.isoformat(timespec="seconds"),
        summary=f"{job.name} made no run on {began:%Y-%m-%d}: {child.why}: {last}",
    )


# --- the steps after it -------------------------------------------------------------------------------------


def _prune(
    found: Sequence[Series], entries: Sequence[Entry], schedule: Schedule, results: Path, tell: Tell, *, dry_run: bool
) -> None:
    now = datetime.now(UTC)
    chosen = prunable(found, entries, schedule.retention, now)
    going = {entry.folder for entry in chosen}
    staying = [entry for entry in entries if entry.folder not in going]
    packing = compactable(results, staying, schedule.retention, now)
    if dry_run:
        there = [entry.run_id for entry in chosen if has_answers(RunFolder(results / entry.folder))]
        tell(f"would prune the samples of {len(there)} runs and compact those of {len(packing)}")
        return
    pruned = prune(results, chosen, now)
    prune_logs(results / FOLDER / "logs", schedule.retention, now)
    if pruned:
        tell(f"pruned the samples of {len(pruned)} runs, {pruned[0]} to {pruned[-1]}")
    packed, refused = pack(packing)
    if packed:
        tell(f"compacted the samples of {len(packed)} runs")
    for line in refused:
        tell(line)


def _alert(all_events: Sequence[Event], schedule: Schedule, results: Path, tell: Tell, *, dry_run: bool) -> None:
    now = datetime.now(UTC)
    sent = deliver(all_events, schedule.alerts, results / FOLDER, now, dry_run=dry_run)
    for delivery in sent:
        tell(_in_words(delivery, dry_run=dry_run))
    lost = [delivery for delivery in sent if delivery.problem]
    if lost:
        raise OSError(f"{len(lost)} alerts did not arrive and are sent again next time: {lost[0].problem}")


def _in_words(delivery: Delivery, *, dry_run: bool) -> str:
    state = "would send" if dry_run else "not sent" if delivery.problem else "sent"
    return f"alert {state} to {delivery.channel}: {delivery.text}"


def _build(schedule: Schedule, results: Path, now: datetime, tell: Tell) -> None:
    if schedule.site is None:
        return
    built = build(results, schedule.site, schedule, now)
    tell(f"site {schedule.site}: {built.made} run pages made, {built.kept} kept")


def _metrics(found: Sequence[Series], schedule: Schedule, now: datetime) -> None:
    if schedule.textfile is None:
        return
    replace_file(schedule.textfile, prometheus(found, now).encode())
