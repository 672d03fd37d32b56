"""Charts as inline SVG that stretches: a plot is `days` wide and 100 high, and text is HTML around it.

Strokes keep their width (`vector-effect`), so one drawing serves a phone and a wide screen, and a zoom is a change
of the view box. Everything here is made of numbers; names are put around it by the templates, escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from markupsafe import Markup

HEIGHT: Final = 100.0
TICK_STEPS: Final = (1, 2, 2.5, 5, 10)
MOST_TICKS: Final = 8
EDGE: Final = 0.035  # share of the axis at either end where a label would be cut
Point = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values and the ticks in it."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float | None], least: float = -math.inf, most: float = math.inf) -> Scale:
        """A range that holds `values` with some air, inside [least, most]."""
        found = [value for value in values if value is not None]
        low, high = min(found, default=0.0), max(found, default=1.0)
        air = max((high - low) * 0.08, 0.004 * max(abs(high), 1e-9), 1e-6)
        return cls(max(low - air, least), min(high + air, most))

    def y(self, value: float) -> float:
        """Height of `value` from the top of the plot, 0..100, clipped."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(HEIGHT * (1 - min(max(share, 0.0), 1.0)), 1)

    def ticks(self, count: int = 3) -> list[float]:
        """About `count` round values inside the range."""
        rough = (self.high - self.low) / count
        unit = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = next((unit * factor for factor in TICK_STEPS if unit * factor >= 0.8 * rough), unit * 10)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 10) for i in range(first, first + 12) if i * step <= self.high + step * 1e-9]


def line(points: Sequence[Point], css: str) -> Markup:
    """A line through `points` (x, y), broken where there is none."""
    data = "".join(
        f"M{_n(part[0][0])} {_n(part[0][1])}" + "".join(f"L{_n(x)} {_n(y)}" for x, y in part[1:])
        for part in _parts(points)
    )
    return Markup('<path class="{}" d="{}"/>').format(css, data) if data else Markup("")


def steps(points: Sequence[Point], css: str) -> Markup:
    """A line that holds each value until the next."""
    data = ""
    for part in _parts(points):
        data += f"M{_n(part[0][0])} {_n(part[0][1])}"
        previous = part[0][1]
        for x, y in part[1:]:
            data += f"H{_n(x)}" + (f"V{_n(y)}" if y != previous else "")
            previous = y
    return Markup('<path class="{}" d="{}"/>').format(css, data) if data else Markup("")


def dots(points: Iterable[Point], css: str) -> Markup:
    """Round dots; each is a stroke without length, so it stays round in a stretched plot."""
    data = "".join(f"M{_n(point[0])} {_n(point[1])}h0" for point in points if point is not None)
    return Markup('<path class="dots {}" d="{}"/>').format(css, data) if data else Markup("")


def band(lows: Sequence[Point], highs: Sequence[Point], css: str) -> Markup:
    """The area between two lines; a lone point becomes a bar."""
    data, lower, upper = "", _parts(lows), _parts(highs)
    for low, high in zip(lower, upper, strict=True):
        if len(low) == 1:
            low, high = _widened(low), _widened(high)  # noqa: PLW2901 - the same point, made visible
        there = "L".join(f"{_n(x)} {_n(y)}" for x, y in high)
        back = "L".join(f"{_n(x)} {_n(y)}" for x, y in reversed(low))
        data += f"M{there}L{back}Z"
    return Markup('<path class="{}" d="{}"/>').format(css, data) if data else Markup("")


def rect(start: float, end: float, css: str) -> Markup:
    """A stretch of time over the whole height."""
    width = max(end - start, 0.01)
    return Markup('<rect class="{}" x="{}" y="0" width="{}" height="100"/>').format(css, _n(start), _n(width))


def svg(body: Iterable[Markup], width: float, css: str = "plot") -> Markup:
    """The plot around its parts."""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} 100" preserveAspectRatio="none" aria-hidden="true" focusable="false">{}</svg>'
    ).format(css, _n(width), Markup("").join(body))


def sparkline(values: Sequence[float | None], scale: Scale, css: str) -> Markup:
    """One value a step, the last one dotted."""
    points = [None if v is None else (i + 0.5, scale.y(v)) for i, v in enumerate(values)]
    return line(points, f"line {css}") + dots(points[-1:], css)


def blocks(tones: Sequence[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """(start, end, name) of neighbours with one name, joined."""
    for name, group in groupby(tones, key=lambda item: item[2]):
        parts = list(group)
        yield parts[0][0], parts[-1][1], name


def date_ticks(first: datetime, days: float) -> list[tuple[float, str]]:
    """(x, label) of at most MOST_TICKS round dates: days, Mondays, or firsts of a month."""
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    every = [midnight + timedelta(days=i) for i in range(1, math.ceil(days) + 1)]
    weeks = [day for day in every if day.weekday() == 0]
    months = [day for day in every if day.day == 1]
    quarters = [day for day in months if day.month % 3 == 1]
    choices = ((every, "%d %b"), (weeks, "%d %b"), (months, "%b %Y"), (quarters, "%b %Y"))
    chosen, form = next((c for c in choices if len(c[0]) <= MOST_TICKS), choices[-1])
    chosen = chosen[:: max(math.ceil(len(chosen) / MOST_TICKS), 1)]
    placed = [(round((day - first) / timedelta(days=1), 3), day.strftime(form)) for day in chosen]
    return [(x, label) for x, label in placed if EDGE * days <= x <= (1 - EDGE) * days]


def _parts(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Runs of points without a gap."""
    grouped = groupby(points, key=lambda point: point is not None)
    return [[point for point in group if point is not None] for there, group in grouped if there]


def _widened(part: list[tuple[float, float]]) -> list[tuple[float, float]]:
    x, y = part[0]
    return [(x - 0.2, y), (x + 0.2, y)]


def _n(value: float) -> str:
    return f"{value:.6g}"
