"""The first page: is anything red? And the list of all runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from evalharness.reports.dashboard.chart import Scale, sparkline, svg
from evalharness.reports.dashboard.task_page import css_class, task_slug
from evalharness.watch.events import Event, age_in_words, open_events
from evalharness.watch.history import Entry, Score
from evalharness.watch.nights import EARLY, Night, Series, Status

RECENT: Final = 45  # nights in a sparkline
CLOSED_SHOWN: Final = 6
MOVED: Final = {"DRIFT", "LOSS"}


@dataclass(frozen=True, slots=True)
class Row:
    """One profile and task: the newest night's status, the newest figures, and the last nights at a glance.
    `flags` are reasons for red beside the status."""

    series: Series
    task: str
    slug: str
    status: Status
    why: str
    scores: tuple[Score, ...]
    cells: tuple[tuple[str, str], ...]
    spark: Markup
    age: str
    flags: tuple[str, ...]
    due: str

    @property
    def tone(self) -> str:
        """Red also where the verdict is good but something is stale or has moved."""
        return "bad" if self.flags else self.status.tone


def overview(
    found: Sequence[Series], all_events: Sequence[Event], entries: Sequence[Entry], now: datetime
) -> dict[str, Any]:
    """Values of index.html."""
    rows = [_row(one, task, all_events, now) for one in found for task in one.tasks or [""]]
    bad = sum(row.tone == "bad" for row in rows)
    closed = [event for event in all_events if not event.is_open]
    return {
        "rows": sorted(rows, key=lambda row: row.tone != "bad"),
        "bad": bad,
        "open": open_events(all_events),
        "closed": sorted(closed, key=lambda e: e.ended or "", reverse=True)[:CLOSED_SHOWN],
        "unreadable": [entry for entry in entries if entry.state == "unreadable"],
        "runs": sum(entry.state != "unreadable" for entry in entries),
        "profiles": sorted({one.profile for one in found}),
    }


def _row(one: Series, task: str, all_events: Sequence[Event], now: datetime) -> Row:
    nights, last = one.nights[-RECENT:], one.last_run
    newest = next((night.entry for night in reversed(one.nights) if night.entry), None)
    return Row(
        series=one,
        task=task,
        slug=task_slug(one, task) if task else "",
        status=one.last.of(task) if task else one.last.status,
        why=one.last.why,
        scores=tuple(last.of(task)) if last else (),
        cells=tuple((night.of(task).tone, f"{night.at:%Y-%m-%d} {night.of(task).value}") for night in nights),
        spark=_spark(nights, task),
        age=age_in_words(newest.at, now) if newest else "never ran",
        flags=tuple(_flags(one, task, newest, all_events, now)),
        due=f"{one.job.next_due(now):%a %H:%M} UTC" if one.job else "",
    )


def _flags(one: Series, task: str, newest: Entry | None, all_events: Sequence[Event], now: datetime) -> Iterator[str]:
    """STALE where a run should have come since the newest one, and what open drift was found."""
    if newest is not None and one.job is not None:
        due = one.job.next_due(newest.at + EARLY)
        if now > due + one.job.grace:
            yield "STALE"
    own = [event.kind for event in all_events if event.is_open and (event.profile, event.task) == (one.profile, task)]
    yield from dict.fromkeys(kind for kind in own if kind in MOVED)


def _spark(nights: Sequence[Night], task: str) -> Markup:
    """Every arm's accuracy over the last nights, on one scale."""
    by_arm: dict[str, tuple[str, list[float | None]]] = {}
    for position, night in enumerate(nights):
        for score in night.entry.of(task) if night.entry else ():
            _, values = by_arm.setdefault(score.arm, (score.capture, [None] * len(nights)))
            values[position] = score.value
    scale = Scale.around((v for _, values in by_arm.values() for v in values), 0.0, 1.0)
    lines = [sparkline(values, scale, css_class(capture)) for capture, values in by_arm.values()]
    return svg(lines, max(len(nights), 1), "spark")


def run_list(found: Sequence[Series], entries: Sequence[Entry]) -> dict[str, Any]:
    """Values of runs.html: every night, newest first, and every folder that is no run."""
    nights = sorted(((n, one) for one in found for n in one.nights), key=lambda item: item[0].at, reverse=True)
    return {"nights": nights, "unreadable": [entry for entry in entries if entry.state == "unreadable"]}
