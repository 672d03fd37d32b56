"""The first page: is anything red? And the list of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from markupsafe import Markup

from evalharness.reports.dashboard.chart import Scale, sparkline, svg
from evalharness.reports.dashboard.task_page import css_class, task_slug
from evalharness.watch.events import Event, age_in_words, open_events
from evalharness.watch.history import Entry, Score
from evalharness.watch.nights import Night, Series, Status

RECENT: Final = 45  # nights in a sparkline
CLOSED_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One profile and task: the newest night's status, the newest figures, and the last nights at a glance."""

    series: Series
    task: str
    slug: str
    status: Status
    why: str
    scores: tuple[Score, ...]
    cells: tuple[tuple[str, str], ...]
    spark: Markup
    age: str
    is_stale: bool
    due: str


def overview(
    found: Sequence[Series], all_events: Sequence[Event], entries: Sequence[Entry], now: datetime
) -> dict[str, Any]:
    """Values of index.html."""
    rows = [_row(one, task, now) for one in found for task in one.tasks or [""]]
    bad = sum(row.status.is_bad or row.is_stale for row in rows)
    closed = [event for event in all_events if not event.is_open]
    return {
        "rows": rows,
        "bad": bad,
        "open": open_events(all_events),
        "closed": sorted(closed, key=lambda e: e.ended or "", reverse=True)[:CLOSED_SHOWN],
        "unreadable": [entry for entry in entries if entry.state == "unreadable"],
        "runs": sum(entry.state != "unreadable" for entry in entries),
        "profiles": sorted({one.profile for one in found}),
    }


def _row(one: Series, task: str, now: datetime) -> Row:
    nights, last = one.nights[-RECENT:], one.last_run
    newest = next((night.entry for night in reversed(one.nights) if night.entry), None)
    is_stale = newest is not None and one.job is not None and _is_stale(one, newest, now)
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
        is_stale=is_stale,
        due=f"{one.job.next_due(now):%a %H:%M} UTC" if one.job else "",
    )


def _is_stale(one: Series, newest: Entry, now: datetime) -> bool:
    """Whether a run should have come since the newest one."""
    return one.job is not None and now > one.job.next_due(newest.at + timedelta(minutes=10)) + one.job.grace


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
