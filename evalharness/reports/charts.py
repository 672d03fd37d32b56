"""Charts of the sign-off: intervals on a line, as data, and drawn as inline SVG that needs no script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from markupsafe import Markup, escape

from evalharness.records import ArmScore, Comparison, Interval, TaskComparison
from evalharness.reports.signoff_tables import TONES, Tone
from evalharness.reports.words import MISSING, figure, limits, plain

WIDTH, LEFT, RIGHT = 420, 92, 62  # viewBox units: the whole, the names' column, the figures' column
TOP, ROW, HEAD, FOOT = 6, 24, 26, 30
NAME_LENGTH: Final = 14


@dataclass(frozen=True, slots=True)
class Mark:
    """One figure with its interval. `published` is drawn as a tick of its own."""

    name: str
    value: float | None
    interval: Interval | None
    tone: Tone = ""
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Groups of marks on one axis from `low` to `high`. `description` says the same in words, for those who
    cannot see it; `ends` name what the axis means at `ticks`."""

    key: str
    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    groups: tuple[tuple[str, tuple[Mark, ...]], ...]

    @property
    def description(self) -> str:
        """Every mark in words."""
        return " ".join(
            f"{group}, {mark.name}: {figure(mark.value)} {limits(mark.interval)}".rstrip() + "."
            for group, marks in self.groups
            for mark in marks
        )

    @property
    def height(self) -> int:
        """Height of the drawing in its own units."""
        return TOP + FOOT + sum(HEAD + ROW * len(marks) for _, marks in self.groups)

    def x(self, value: float) -> float:
        """Where a value lies; one off the axis lies at its end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def rows(self) -> Iterator[tuple[float, str, Mark | None]]:
        """(y of the middle, group, mark) from the top down; a group's heading has no mark."""
        y = float(TOP)
        for group, marks in self.groups:
            yield y + HEAD / 2, group, None
            y += HEAD
            for mark in marks:
                yield y + ROW / 2, group, mark
                y += ROW


def charts(comparison: Comparison) -> list[Chart]:
    """Accuracy by arm, and recovery where stock, patched and eager ran."""
    return [chart for chart in (_accuracy(comparison), _recovery(comparison)) if chart.groups]


def _accuracy(comparison: Comparison) -> Chart:
    groups = tuple((plain(task.task), tuple(_arm(task, score) for score in task.scores)) for task in comparison.tasks)
    ticks = tuple((value, f"{value:g}") for value in (0, 0.25, 0.5, 0.75, 1))
    return Chart("accuracy", f"Accuracy by arm, {comparison.level:.0%} intervals", 0, 1, ticks, groups)


def _arm(task: TaskComparison, score: ArmScore) -> Mark:
    published = next((p.published for p in task.published if p.arm == score.arm), None)
    tone = TONES[score.outcome] if score.outcome else ""
    return Mark(plain(score.arm), score.value, score.interval, tone, published)


def _recovery(comparison: Comparison) -> Chart:
    groups = tuple(
        (plain(task.task), tuple(Mark(plain(r.arm), r.value, r.interval) for r in task.recovery))
        for task in comparison.tasks
        if any(r.value is not None for r in task.recovery)
    )
    ends = [end for _, marks in groups for mark in marks for end in _ends(mark)]
    low, high = floor(min([0.0, *ends]) * 5) / 5, ceil(max([1.0, *ends]) * 5) / 5
    low, high = max(low, -1.0), min(high, 2.0)
    ticks = ((0.0, "0 = stock"), (1.0, "1 = eager"))
    return Chart("recovery", f"Recovery, {comparison.level:.0%} intervals", low, high, ticks, groups)


def _ends(mark: Mark) -> list[float]:
    return [
        v for v in (mark.value, *((mark.interval.low, mark.interval.high) if mark.interval else ())) if v is not None
    ]


# --- SVG -------------------------------------------------------------------------------------------------


def svg(chart: Chart) -> Markup:
    """The chart as one <svg> element; colours come from the page's style sheet."""
    parts = [*_axis(chart), *(part for y, group, mark in chart.rows() for part in _row(chart, y, group, mark))]
    return Markup(
        '<svg viewBox="0 0 {w} {h}" role="img" aria-labelledby="{k}-title {k}-words" class="chart">'
        '<title id="{k}-title">{title}</title><desc id="{k}-words">{words}</desc>{parts}</svg>'
    ).format(
        w=WIDTH, h=chart.height, k=chart.key, title=chart.title, words=chart.description, parts=Markup("").join(parts)
    )


def _axis(chart: Chart) -> Iterator[Markup]:
    bottom = chart.height - FOOT + 4
    for value, label in chart.ticks:
        x = chart.x(value)
        yield Markup('<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{y}"/>').format(
            x=x, top=TOP + HEAD - 4, y=bottom
        )
        yield _text(x, bottom + 15, label, "tick")


def _row(chart: Chart, y: float, group: str, mark: Mark | None) -> Iterator[Markup]:
    if mark is None:
        yield _text(0, y + 5, group, "group")
        return
    yield _text(8, y + 4, short(mark.name), "name")
    yield _text(WIDTH - RIGHT + 10, y + 4, MISSING if mark.value is None else f"{mark.value:.3f}", "value")
    if mark.interval is not None:
        yield Markup('<path class="interval {tone}" d="M{a:.1f} {t:.1f}v8m0-4H{b:.1f}m0-4v8"/>').format(
            tone=mark.tone, a=chart.x(mark.interval.low), b=chart.x(mark.interval.high), t=y - 4
        )
    if mark.published is not None:
        yield Markup('<line class="published" x1="{x:.1f}" x2="{x:.1f}" y1="{a:.1f}" y2="{b:.1f}"/>').format(
            x=chart.x(mark.published), a=y - 8, b=y + 8
        )
    if mark.value is not None:
        yield _dot(chart.x(mark.value), y, mark.tone)


def _dot(x: float, y: float, tone: Tone) -> Markup:
    """A failed arm has a diamond, any other a dot: colour alone says nothing."""
    if tone == "bad":
        return Markup('<path class="dot bad" d="M{x:.1f} {t:.1f}l6 6-6 6-6-6z"/>').format(x=x, t=y - 6)
    return Markup('<circle class="dot {tone}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>').format(tone=tone, x=x, y=y)


def _text(x: float, y: float, words: str, kind: str) -> Markup:
    return Markup('<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{words}</text>').format(
        kind=kind, x=x, y=y, words=escape(words)
    )


def short(name: str) -> str:
    """A name that fits its column."""
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
