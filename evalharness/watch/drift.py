"""Has a figure moved? A self-starting CUSUM over the nights, and the paired test against the last good one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from evalharness.watch.marks import PairedMarks

BASELINE: Final = 15  # nights before anything is judged
# k and h in sigmas. Simulated (benchmarks/bench_drift.py): a loss of two sigmas is found after six nights (median), a
# steady figure raises 0.08 false alarms in 400 nights, so three arms on two tasks raise one in about two years.
SLACK: Final = 0.5
DECISION: Final = 8.0
YOUNG: Final = 4.0  # sigma of n nights is widened by 1 + YOUNG / n: a short baseline knows its spread badly
CLIP: Final = 4.0  # one noisy night must not decide alone ...
ABRUPT: Final = 6.0  # ... but one this far off does
LIMIT: Final = 3.0  # control limits, in sigmas
CALM: Final = 2  # nights inside the limits that end a shift
PAIRED_ALPHA: Final = 1e-4  # one-sided, a night and arm: three arms and two tasks raise a false alarm every four years
MOVING_RANGE: Final = 1.128  # expected range of two normal values, in sigmas


@dataclass(frozen=True, slots=True)
class Limits:
    """What a night is held against: the mean of the nights in control before it, and three sigmas around it."""

    centre: float
    low: float
    high: float


@dataclass(slots=True)
class Shift:
    """A change of level. `start` is the estimated first night of it, `found` the night it was noticed, `end` the
    first night back inside the limits (None: it lasts). Positions in the sequence of nights."""

    start: int
    found: int
    direction: str
    before: float
    after: float
    end: int | None = None


@dataclass(slots=True)
class Watch:
    """One figure over the nights: limits (None: no figure, or too few nights yet) and shifts."""

    limits: list[Limits | None] = field(default_factory=list)
    shifts: list[Shift] = field(default_factory=list)


def watch(values: Sequence[float | None], sizes: Sequence[int], floor: float = 0.0) -> Watch:
    """Run the chart over `values` (nights,) in 0..1, each the mean of `sizes` answers; None is a night without one.

    Tabular CUSUM (Page 1954) on deviations from the mean of all earlier nights in control, so that it starts
    itself (Hawkins 1987); sigma from the mean moving range, as on a chart of individuals (Montgomery 2009, 6.4),
    and never below one answer's weight or a third of `floor`, the A/A noise floor. A shift ends when CALM nights
    in a row lie inside the old limits.
    """
    chart = _Chart(floor)
    for position, (value, size) in enumerate(zip(values, sizes, strict=True)):
        chart.add(position, value, size)
    return Watch(chart.limits, chart.shifts)


class _Baseline:
    """The nights in control: mean and mean moving range, kept as running sums."""

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.nights: list[tuple[int, float]] = []
        self.total, self.ranges = 0.0, 0.0

    def __len__(self) -> int:
        return len(self.nights)

    def add(self, position: int, value: float) -> None:
        """Count one more night."""
        self.ranges += abs(value - self.nights[-1][1]) if self.nights else 0.0
        self.total += value
        self.nights.append((position, value))

    def before(self, position: int) -> _Baseline:
        """The baseline as it was before the night at `position`; the whole one where none came before."""
        earlier = _Baseline(self.floor)
        for night in self.nights:
            if night[0] < position:
                earlier.add(*night)
        return earlier if len(earlier) else self

    @property
    def centre(self) -> float:
        """Mean of the nights."""
        return self.total / len(self.nights)

    def sigma(self, size: int) -> float:
        """Night-to-night standard deviation of a mean of `size` answers."""
        nights = len(self.nights)
        spread = self.ranges / max(nights - 1, 1) / MOVING_RANGE * (1 + YOUNG / nights)
        return max(spread, 1 / max(size, 1), self.floor / LIMIT)

    def limits(self, size: int) -> Limits:
        """Control limits of the next night."""
        reach = LIMIT * self.sigma(size)
        return Limits(self.centre, max(0.0, self.centre - reach), min(1.0, self.centre + reach))


class _Side:
    """One direction of the CUSUM."""

    def __init__(self, sign: float) -> None:
        self.sign = sign
        self.sum = 0.0
        self.rising: list[tuple[int, float]] = []  # (position, distance) since the sum was last 0

    def add(self, position: int, distance: float) -> int | None:
        """Add one night; the position of the first night of a shift, once one is found."""
        towards = self.sign * distance
        self.sum = max(0.0, self.sum + min(towards, CLIP) - SLACK)
        self.rising = [*self.rising, (position, towards)] if self.sum else []
        if towards > ABRUPT or self.sum > DECISION:
            return self._first()
        return None

    def _first(self) -> int:
        """Maximum-likelihood change point of a step from a known mean (Samuel, Pignatiello and Calvin 1998)."""
        best, total, count, first = -1.0, 0.0, 0, self.rising[-1][0]
        for position, towards in reversed(self.rising):
            total, count = total + towards, count + 1
            if total > 0 and total * total / count > best:
                best, first = total * total / count, position
        return first


class _Chart:
    """The state of the chart between two nights."""

    def __init__(self, floor: float) -> None:
        self.calm = _Baseline(floor)
        self.sides = {"fell": _Side(-1.0), "rose": _Side(1.0)}
        self.back, self.first_back = 0, 0
        self.limits: list[Limits | None] = []
        self.shifts: list[Shift] = []

    def add(self, position: int, value: float | None, size: int) -> None:
        """Judge one night."""
        ready = len(self.calm) >= BASELINE
        self.limits.append(self.calm.limits(size) if ready and value is not None else None)
        if value is None:
            return
        if not ready:
            self.calm.add(position, value)
            return
        distance = (value - self.calm.centre) / self.calm.sigma(size)
        if self.shifts and self.shifts[-1].end is None:
            self._in_shift(position, value, distance)
        else:
            self._in_control(position, value, distance)

    def _in_control(self, position: int, value: float, distance: float) -> None:
        for direction, side in self.sides.items():
            start = side.add(position, distance)
            if start is not None:
                self._shift(Shift(start, position, direction, 0.0, value))
                return
        if abs(distance) <= LIMIT:
            self.calm.add(position, value)

    def _shift(self, shift: Shift) -> None:
        self.calm = self.calm.before(shift.start)
        shift.before = self.calm.centre
        self.shifts.append(shift)
        self.sides = {"fell": _Side(-1.0), "rose": _Side(1.0)}
        self.back = 0

    def _in_shift(self, position: int, value: float, distance: float) -> None:
        shift = self.shifts[-1]
        if abs(distance) > LIMIT:
            shift.after, self.back = value, 0
            return
        self.back += 1
        if self.back == 1:
            self.first_back = position
        if self.back >= CALM:
            shift.end = self.first_back
            self.calm.add(position, value)


@dataclass(frozen=True, slots=True)
class AgainstGood:
    """The paired test of one night against the last good one; `p` is one-sided, "worse now"."""

    difference: float
    p: float
    test: str
    n: int

    @property
    def is_loss(self) -> bool:
        """Whether chance is no explanation."""
        return self.difference < 0 and self.p < PAIRED_ALPHA


def against_good(pairs: PairedMarks, seed: int = 0) -> AgainstGood:
    """Test a night's answers against those of the last good one, question by question."""
    # scipy takes longer to load than a page to build, and a calm night tests nothing.
    from evalharness.stats.clusters import PairedScores
    from evalharness.stats.significance import paired_test

    found = paired_test(PairedScores(pairs.now, pairs.before, pairs.starts), seed)
    return AgainstGood(pairs.difference, found.p_worse, found.method, len(pairs.now))
