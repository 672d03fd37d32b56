"""Any two runs side by side. The page's script reads `runs/<id>/data.js`; without it, the newest pairs are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.reports.dashboard.task_page import css_class
from evalharness.watch.history import Entry, Score
from evalharness.watch.marks import pair_marks
from evalharness.watch.nights import Series, Status


@dataclass(frozen=True, slots=True)
class Line:
    """One (task, arm) of a pair of runs; `flips` are answers (lost, gained), None where they cannot be paired."""

    now: Score
    before: Score
    flips: tuple[int, int] | None

    @property
    def difference(self) -> float | None:
        """Change of accuracy."""
        if self.now.value is None or self.before.value is None:
            return None
        return self.now.value - self.before.value


def compare_view(found: Sequence[Series]) -> dict[str, Any]:
    """Values of compare.html: every run to choose from, and each series' newest run against its last good one."""
    pairs = [(one, *pair) for one in found if (pair := _newest_pair(one)) is not None]
    return {
        "choices": [_choice(one, entry) for one in found for entry in _runs(one)],
        "pairs": [(one, now, before, _lines(now, before)) for one, now, before in pairs],
    }


def run_data(entry: Entry) -> dict[str, Any]:
    """What the script knows of one run."""
    return {
        "id": entry.run_id,
        "created": entry.created,
        "profile": entry.profile,
        "engine": entry.engine,
        "model": entry.model,
        "version": entry.version,
        "verdict": entry.verdict,
        "scores": [_score_data(score) for score in entry.scores],
    }


def _score_data(score: Score) -> dict[str, Any]:
    kept = (
        "task", "metric", "repeats", "questions", "arm", "n", "value", "low", "high", "output_tokens", "degenerate",
        "marks",
    )  # fmt: skip
    return {name: getattr(score, name) for name in kept} | {"css": css_class(score.capture)}


def _choice(one: Series, entry: Entry) -> list[str]:
    return [
        entry.run_id,
        one.profile,
        entry.created[:16].replace("T", " "),
        entry.verdict or "no verdict",
        entry.version,
    ]


def _runs(one: Series) -> list[Entry]:
    return [night.entry for night in reversed(one.nights) if night.entry is not None and night.entry.scores]


def _newest_pair(one: Series) -> tuple[Entry, Entry] | None:
    runs = _runs(one)
    good = next((entry for entry in runs[1:] if entry.verdict == Status.PASS.value), None)
    return (runs[0], good) if good else None


def _lines(now: Entry, before: Entry) -> list[Line]:
    earlier = {(score.task, score.arm): score for score in before.scores}
    pairs = [(s, earlier[s.task, s.arm]) for s in now.scores if (s.task, s.arm) in earlier]
    return [Line(s, old, _flips(s, old)) for s, old in pairs]


def _flips(now: Score, before: Score) -> tuple[int, int] | None:
    if now.questions != before.questions:
        return None
    pairs = pair_marks(now.marks or "", before.marks or "", now.repeats)
    if pairs is None:
        return None
    return int((pairs.now < pairs.before).sum()), int((pairs.now > pairs.before).sum())
