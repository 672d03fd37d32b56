"""Events: what somebody must be told once. An event spans the nights it lasts and names the first bad run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from evalharness.watch.drift import CALM, AgainstGood, Watch, against_good, watch
from evalharness.watch.history import Entry, Score
from evalharness.watch.marks import pair_marks
from evalharness.watch.nights import Night, Series, Status

MOST_COMMITS: Final = 50
COMMIT: Final = re.compile(r"[0-9a-f]{7,40}")
BUILT_FROM: Final = re.compile(r"\+g([0-9a-f]{7,40})")  # vLLM's development versions end in their commit


@dataclass(frozen=True, slots=True)
class Event:
    """`id` never changes while the event lasts. `ended` is None while it is open. `commits` are one-line
    descriptions of what changed between `last_good` and `first_bad`; `details` are further findings on it."""

    id: str
    kind: str
    profile: str
    task: str
    arm: str
    since: str
    summary: str
    first_bad: str = ""
    last_good: str = ""
    change: str = ""
    commits: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    ended: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it still lasts."""
        return self.ended is None


def events(found: Series, repository: Path | None = None) -> list[Event]:
    """Every event of a series, oldest first; what drift finds inside a bad stretch becomes a detail of it."""
    stretches = [event for task in found.tasks or [""] for event in _stretches(found, task)]
    drifts = [event for task in found.tasks for event in (*_shifts(found, task), *_paired(found, task))]
    merged = _merged([*_deduplicated(stretches), *drifts])
    return [_with_commits(event, found, repository) for event in sorted(merged, key=lambda e: e.since)]


def task_watch(found: Series, task: str, arm: str) -> Watch:
    """The drift chart of (task, arm) over the nights of the series."""
    scores = [_score(night, task, arm) for night in found.nights]
    newest = next((s.questions for s in reversed(scores) if s), "")
    same = [s if s and s.questions == newest else None for s in scores]
    floor = max((s.noise_floor or 0.0 for s in same if s), default=0.0)
    return watch([s.value if s else None for s in same], [s.n if s else 0 for s in same], floor)


# --- bad stretches ------------------------------------------------------------------------------------------


def _stretches(found: Series, task: str) -> Iterator[Event]:
    """Nights with one bad status; a stretch lasts until CALM nights in a row are free of it."""
    statuses = [night.of(task) if task else night.status for night in found.nights]
    for status in dict.fromkeys(status for status in statuses if status.is_bad):
        hits = [i for i, other in enumerate(statuses) if other is status]
        for group in _runs_of(hits):
            after = group[-1] + 1
            is_over = len(statuses) - after >= CALM or status in {Status.MISSING, Status.LATE}
            ended = found.nights[after] if is_over and after < len(statuses) else None
            yield _stretch(found, task, status, [found.nights[i] for i in group], ended)


def _runs_of(positions: Sequence[int]) -> list[list[int]]:
    """Positions less than CALM good nights apart, together."""
    groups: list[list[int]] = []
    for position in positions:
        if groups and position - groups[-1][-1] <= CALM:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _stretch(found: Series, task: str, status: Status, run: Sequence[Night], after: Night | None) -> Event:
    first = run[0]
    whole = status in {Status.MISSING, Status.LATE, Status.UNFINISHED}
    where = found.profile if whole else f"{found.profile} / {task}"
    nights = f"{len(run)} nights" if len(run) > 1 else "1 night"
    why = first.why if whole else _task_reason(first, task)
    key = first.entry.folder if first.entry else first.at.isoformat()
    return Event(
        id=f"{status.value}:{where}:{key}",
        kind=status.value,
        profile=found.profile,
        task="" if whole else task,
        arm="",
        since=first.at.isoformat(),
        summary=f"{where} is {status.value} since {first.at:%Y-%m-%d} ({nights}){f': {why}' if why else ''}",
        first_bad=first.entry.run_id if first.entry else "",
        ended=after.at.isoformat() if after else None,
    )


def _task_reason(night: Night, task: str) -> str:
    own = [r.removeprefix(f"{task}: ") for r in (night.entry.reasons if night.entry else ()) if r.startswith(task)]
    return " ".join(own)[:400]


def _deduplicated(found: Iterable[Event]) -> list[Event]:
    """A missing night concerns every task, and is told once."""
    return list({event.id: event for event in found}.values())


# --- drift --------------------------------------------------------------------------------------------------


def _shifts(found: Series, task: str) -> Iterator[Event]:
    for arm in _arms(found, task):
        for shift in task_watch(found, task, arm).shifts:
            start, end = found.nights[shift.start], None if shift.end is None else found.nights[shift.end]
            noticed = found.nights[shift.found].entry
            yield Event(
                id=f"DRIFT:{found.profile} / {task}:{arm}:{noticed.folder if noticed else shift.found}",
                kind="DRIFT",
                profile=found.profile,
                task=task,
                arm=arm,
                since=start.at.isoformat(),
                summary=(
                    f"{found.profile} / {task}: {arm} {shift.direction} from {shift.before:.3f} to {shift.after:.3f} "
                    f"on {start.at:%Y-%m-%d} (CUSUM)"
                ),
                first_bad=start.entry.run_id if start.entry else "",
                ended=end.at.isoformat() if end else None,
            )


def _paired(found: Series, task: str) -> Iterator[Event]:
    """The newest run against the last good one before it, question by question."""
    runs = [night.entry for night in found.nights if night.entry and night.entry.of(task)]
    if not runs:
        return
    good = next((e for e in reversed(runs[:-1]) if e.verdict == Status.PASS), None)
    if good is None:
        return
    since_good = runs[runs.index(good) + 1 :]
    for arm in _arms(found, task):
        tested = [(entry, _against(entry, good, task, arm)) for entry in since_good]
        bad = [(entry, test) for entry, test in tested if test is not None and test.is_loss]
        if bad and bad[-1][0] is runs[-1]:
            yield _loss(found, task, arm, bad[0][0], good, bad[-1][1])


def _loss(found: Series, task: str, arm: str, first: Entry, good: Entry, test: AgainstGood) -> Event:
    return Event(
        id=f"LOSS:{found.profile} / {task}:{arm}:{good.folder}",
        kind="LOSS",
        profile=found.profile,
        task=task,
        arm=arm,
        since=first.created,
        summary=(
            f"{found.profile} / {task}: {arm} lost {-test.difference:.3f} against the last good run "
            f"({test.test}, p {test.p:.1e}, n {test.n})"
        ),
        first_bad=first.run_id,
        last_good=good.run_id,
    )


def _against(entry: Entry, good: Entry, task: str, arm: str) -> AgainstGood | None:
    now, before = _of_arm(entry, task, arm), _of_arm(good, task, arm)
    if now is None or before is None or now.questions != before.questions:
        return None
    pairs = pair_marks(now.marks or "", before.marks or "", now.repeats)
    if pairs is None or -pairs.difference <= (now.noise_floor or 0.0):
        return None
    return against_good(pairs)


def _arms(found: Series, task: str) -> list[str]:
    last = next((n.entry for n in reversed(found.nights) if n.entry and n.entry.of(task)), None)
    return [score.arm for score in last.of(task)] if last else []


def _of_arm(entry: Entry, task: str, arm: str) -> Score | None:
    return next((score for score in entry.of(task) if score.arm == arm), None)


def _score(night: Night, task: str, arm: str) -> Score | None:
    return _of_arm(night.entry, task, arm) if night.entry else None


def _merged(found: Sequence[Event]) -> list[Event]:
    """Findings on one stretch of one task are one event."""
    kept: list[Event] = []
    for event in found:
        home = next((i for i, other in enumerate(kept) if _is_part(event, other)), None)
        if home is None:
            kept.append(event)
        else:
            kept[home] = replace(
                kept[home],
                details=(*kept[home].details, event.summary),
                last_good=kept[home].last_good or event.last_good,
            )
    return kept


def _is_part(event: Event, other: Event) -> bool:
    """Whether `event`, found by a test of drift, overlaps `other` on the same task."""
    if event.kind not in {"DRIFT", "LOSS"} or (event.profile, event.task) != (other.profile, other.task):
        return False
    return (other.ended or "9") > event.since and (event.ended or "9") > other.since


# --- what changed -------------------------------------------------------------------------------------------


def _with_commits(event: Event, found: Series, repository: Path | None) -> Event:
    """Name the last good run before the event, and what changed between it and the first bad one."""
    runs = [night.entry for night in found.nights if night.entry]
    bad = next((entry for entry in runs if entry.run_id == event.first_bad), None)
    if bad is None:
        return event
    passed = (e for e in reversed(runs[: runs.index(bad)]) if _good(e, event.task))
    good = next((e for e in runs if e.run_id == event.last_good), None) or next(passed, None)
    if good is None:
        return event
    return replace(
        event, last_good=good.run_id, change=_change(good, bad), commits=commits_between(good, bad, repository)
    )


def _good(entry: Entry, task: str) -> bool:
    verdicts = {score.task_verdict for score in entry.of(task)} if task else {entry.verdict}
    return verdicts == {Status.PASS.value}


CHANGES: Final[dict[str, Callable[[Entry], str]]] = {
    "version": lambda entry: entry.version,
    "evalharness commit": lambda entry: entry.commit[:12],
    "model": lambda entry: entry.model,
}


def _change(good: Entry, bad: Entry) -> str:
    """`version 0.22.0 → 0.22.1`, for everything recorded that changed."""
    changed = [f"{name} {of(good)} → {of(bad)}" for name, of in CHANGES.items() if of(good) != of(bad)]
    return "; ".join(changed) or "nothing that is recorded changed"


def commits_between(good: Entry, bad: Entry, repository: Path | None) -> tuple[str, ...]:
    """Commits of the evaluated build between two runs, newest first; none where no checkout is at hand."""
    first, last = _built_from(good), _built_from(bad)
    if repository is None or not first or not last or first == last:
        return ()
    command = ["git", "-C", str(repository), "log", "--oneline", f"-n{MOST_COMMITS}", f"{first}..{last}", "--"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603 - hashes only
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(done.stdout.splitlines())


def _built_from(entry: Entry) -> str:
    """The commit of the evaluated build: out of vLLM's version, or this repository's for its own engine."""
    found = BUILT_FROM.search(entry.version)
    commit = found.group(1) if found else entry.commit if entry.engine == "emulated" else ""
    return commit if COMMIT.fullmatch(commit) else ""


def open_events(found: Iterable[Event]) -> list[Event]:
    """Those that still last, newest first."""
    return sorted((event for event in found if event.is_open), key=lambda e: e.since, reverse=True)


def age_in_words(then: datetime, now: datetime) -> str:
    """`3 h`, `2 days`."""
    hours = (now - then).total_seconds() / 3600
    return (
        f"{max(hours, 0) * 60:.0f} min" if hours < 1 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
    )
