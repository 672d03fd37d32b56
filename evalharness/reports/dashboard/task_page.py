"""One profile and task over time: a panel of accuracy for each arm, then length and degeneration of all of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from markupsafe import Markup

from evalharness.reports.dashboard.chart import (
    Point,
    Scale,
    band,
    blocks,
    date_ticks,
    dots,
    line,
    rect,
    steps,
    svg,
)
from evalharness.spec import CAPTURES
from evalharness.watch.drift import Shift, Watch
from evalharness.watch.events import Event, task_watch
from evalharness.watch.history import Score
from evalharness.watch.nights import Night, Series, Status

TABLE_NIGHTS: Final = 400  # rows of the table; the chart shows every night
DAY: Final = timedelta(days=1)
RELEASE: Final = re.compile(r"\d+\.\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot with its name, its unit and the ticks of its axis as (percent from the top, label)."""

    title: str
    note: str
    arm: str
    ticks: tuple[tuple[float, str], ...]
    plot: Markup


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of every arm drawn in one panel."""

    title: str
    note: str
    of: Callable[[Score], float | None]
    form: str
    least: float = 0.0
    most: float = float("inf")


FIGURES: Final = (
    Figure("output length", "mean tokens of an answer", lambda score: score.output_tokens, "{:g}"),
    Figure("degenerate answers", "share that loops, is empty or drifts", lambda s: s.degenerate, "{:.0%}", 0.0, 1.0),
    Figure("cut at the token limit", "share of answers", lambda score: score.truncated, "{:.0%}", 0.0, 1.0),
)


def task_slug(one: Series, task: str) -> str:
    """The page's name: stable for one profile, engine and model."""
    mark = hashlib.sha256(f"{one.engine}\0{one.model}".encode()).hexdigest()[:6]
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in f"{one.profile}--{task}--{mark}")


def task_view(one: Series, task: str, own: Sequence[Event]) -> dict[str, Any]:
    """Values of task.html."""
    timeline = _Timeline(one, task)
    return {
        "series": one,
        "task": task,
        "status": one.last.of(task),
        "last": one.last_run,
        "scores": one.last_run.of(task) if one.last_run else [],
        "arms": timeline.arms,
        "panels": [*(timeline.accuracy(arm) for arm in timeline.arms), *(timeline.together(f) for f in FIGURES)],
        "strip": timeline.strip(),
        "builds": timeline.builds(),
        "ticks": date_ticks(timeline.first, timeline.days),
        "days": timeline.days,
        "data": timeline.data(),
        "events": [event for event in reversed(own) if event.task in {"", task}],
        "nights": timeline.table(),
        "older": max(len(one.nights) - TABLE_NIGHTS, 0),
    }


class _Timeline:
    """The nights of one task along the time axis, in days since half a day before the first."""

    def __init__(self, one: Series, task: str) -> None:
        self.one, self.task, self.nights = one, task, one.nights
        self.first = self.nights[0].at - DAY / 2
        self.xs = [round((night.at - self.first) / DAY, 3) for night in self.nights]
        self.days = round(self.xs[-1] + 0.5, 3)
        scores = [s for night in reversed(self.nights) if night.entry for s in night.entry.of(task)]
        self.arms = {score.arm: css_class(score.capture) for score in scores}
        self.arms = dict(sorted(self.arms.items(), key=lambda item: _rank(item[1], item[0])))

    def accuracy(self, arm: str) -> Panel:
        """Accuracy with its interval, control limits, noise floor and shifts."""
        chart, scores = task_watch(self.one, self.task, arm), self._scores(arm)
        limits = [(limit.low, limit.high) for limit in chart.limits if limit]
        values = [v for s in scores if s for v in (s.value, s.low, s.high)]
        scale = Scale.around([*values, *(v for pair in limits for v in pair)], 0.0, 1.0)
        name = self.arms[arm]
        low = self._points(scale, [s.low if s and s.high is not None else None for s in scores])
        high = self._points(scale, [s.high if s and s.low is not None else None for s in scores])
        values_at = self._points(scale, [s.value if s else None for s in scores])
        body = [
            *(self._shift(shift) for shift in chart.shifts),
            self._noise(scale, chart, scores),
            band(low, high, f"band {name}"),
            *self._limits(scale, chart),
            line(values_at, f"line {name}"),
            dots(values_at, name),
            dots(self._outside(values_at, scores, chart), "outside"),
        ]
        return self._panel(f"accuracy, {arm}", _last_limits(chart), arm, scale, "{:g}", body)

    def together(self, figure: Figure) -> Panel:
        """One figure of all arms."""
        by_arm = {arm: [figure.of(s) if s else None for s in self._scores(arm)] for arm in self.arms}
        scale = Scale.around((v for values in by_arm.values() for v in values), figure.least, figure.most)
        body = []
        for arm, values in by_arm.items():
            points = self._points(scale, values)
            drawn = line(points, f"line {self.arms[arm]}") + dots(points, self.arms[arm])
            body.append(Markup('<g data-arm="{}">{}</g>').format(arm, drawn))
        return self._panel(figure.title, figure.note, "", scale, figure.form, body)

    def strip(self) -> list[tuple[float, float, str, str]]:
        """(start, width, tone, words) of the verdict band; neighbours of one status are one block."""
        edges = [self._edges(i) for i in range(len(self.nights))]
        statuses = [night.of(self.task) for night in self.nights]
        joined = blocks([(*edge, status.value) for edge, status in zip(edges, statuses, strict=True)])
        tones = {status.value: status.tone for status in statuses}
        return [(start, round(end - start, 3), tones[name], name) for start, end, name in joined]

    def builds(self) -> list[tuple[float, float, str, str]]:
        """(start, width, version, label) of the builds along the axis; a missed night keeps the build before it."""
        versions, last = [], ""
        for i, night in enumerate(self.nights):
            last = night.entry.version if night.entry and night.entry.version else last
            versions.append((*self._edges(i), last))
        return [(start, round(end - start, 3), name, _label(name)) for start, end, name in blocks(versions)]

    def data(self) -> dict[str, Any]:
        """What the page's script reads: one row a night."""
        versions = list(dict.fromkeys(n.entry.version if n.entry else "" for n in self.nights))
        rows = [self._datum(i, night, versions) for i, night in enumerate(self.nights)]
        return {
            "days": self.days,
            "start": self.first.isoformat(),
            "arms": self.arms,
            "versions": versions,
            "nights": rows,
        }

    def table(self) -> list[tuple[Night, Status, list[Score | None]]]:
        """The newest nights, newest first, with the scores in the order of the arms."""
        found = []
        for night in list(reversed(self.nights))[:TABLE_NIGHTS]:
            scores = {score.arm: score for score in night.entry.of(self.task)} if night.entry else {}
            found.append((night, night.of(self.task), [scores.get(arm) for arm in self.arms]))
        return found

    def _datum(self, i: int, night: Night, versions: list[str]) -> list[Any]:
        entry = night.entry
        scores = {score.arm: score for score in entry.of(self.task)} if entry else {}
        return [
            self.xs[i],
            entry.run_id if entry else "",
            night.of(self.task).value,
            f"{night.at:%Y-%m-%d %H:%M}",
            versions.index(entry.version if entry else ""),
            [_figures(scores[arm]) if arm in scores else None for arm in self.arms],
        ]

    def _scores(self, arm: str) -> list[Score | None]:
        found = ([s for s in n.entry.of(self.task) if s.arm == arm] if n.entry else [] for n in self.nights)
        return [scores[0] if scores else None for scores in found]

    def _points(self, scale: Scale, values: Sequence[float | None]) -> list[Point]:
        return [None if v is None else (x, scale.y(v)) for x, v in zip(self.xs, values, strict=True)]

    def _edges(self, i: int) -> tuple[float, float]:
        """Half way to the neighbours, so that the band has no holes."""
        start = 0.0 if i == 0 else (self.xs[i - 1] + self.xs[i]) / 2
        end = self.days if i == len(self.xs) - 1 else (self.xs[i] + self.xs[i + 1]) / 2
        return round(start, 3), round(end, 3)

    def _shift(self, shift: Shift) -> Markup:
        end = len(self.xs) if shift.end is None else shift.end
        return rect(self._edges(shift.start)[0], self._edges(end - 1)[1], "shift")

    def _limits(self, scale: Scale, chart: Watch) -> list[Markup]:
        ends = ("low", "centre", "high")
        values = ([getattr(limit, end) if limit else None for limit in chart.limits] for end in ends)
        return [steps(self._points(scale, v), f"limit {e}") for e, v in zip(ends, values, strict=True)]

    def _noise(self, scale: Scale, chart: Watch, scores: Sequence[Score | None]) -> Markup:
        """What two runs of one arm differ by, around the centre."""
        floors = [s.noise_floor if s and limit else None for s, limit in zip(scores, chart.limits, strict=True)]
        pairs = list(zip(chart.limits, floors, strict=True))
        low = [limit.centre - floor if limit and floor else None for limit, floor in pairs]
        high = [limit.centre + floor if limit and floor else None for limit, floor in pairs]
        return band(self._points(scale, low), self._points(scale, high), "noise")

    def _outside(self, points: Sequence[Point], scores: Sequence[Score | None], chart: Watch) -> list[Point]:
        """The nights outside their control limits."""
        out = [
            s is not None and s.value is not None and limit is not None and not limit.low <= s.value <= limit.high
            for s, limit in zip(scores, chart.limits, strict=True)
        ]
        return [point if is_out else None for point, is_out in zip(points, out, strict=True)]

    def _panel(self, title: str, note: str, arm: str, scale: Scale, form: str, body: Sequence[Markup]) -> Panel:
        ticks = tuple((scale.y(value), form.format(value)) for value in scale.ticks())
        grid = [Markup('<path class="grid" d="M0 {0}H{1}"/>').format(y, self.days) for y, _ in ticks]
        return Panel(title, note, arm, ticks, svg([*grid, *body], self.days))


def css_class(capture: str) -> str:
    """The class that colours an arm; of names that others chose nothing gets in."""
    return f"arm-{capture if capture in CAPTURES else 'other'}"


def _label(version: str) -> str:
    """The release in a version string: `0.22.1` of `vllm 0.22.1.dev7+gabc`."""
    found = RELEASE.search(version)
    return found.group() if found else version


def _rank(name: str, arm: str) -> tuple[int, str]:
    order = [f"arm-{capture}" for capture in CAPTURES]
    return (order.index(name) if name in order else len(order), arm)


def _figures(score: Score) -> list[float | None]:
    figures = (score.value, score.low, score.high, score.output_tokens, score.degenerate)
    return [None if value is None else round(value, 4) for value in figures] + [score.n]


def _last_limits(chart: Watch) -> str:
    limit = next((limit for limit in reversed(chart.limits) if limit), None)
    if limit is None:
        return "too few nights for control limits"
    return f"in control between {limit.low:.3f} and {limit.high:.3f}, mean {limit.centre:.3f}"
