"""One run: its verdict, its figures, its evidence in brief, and the documents beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalharness.errors import EvalHarnessError
from evalharness.records import Comparison, Run
from evalharness.reports.dashboard.task_page import css_class, task_slug
from evalharness.reports.words import detail_lines
from evalharness.store import RunFolder, decode
from evalharness.watch.history import Entry
from evalharness.watch.nights import Night, Series

DOCUMENT_NAMES: Final = {
    "signoff.html": "Sign-off report",
    "signoff.pdf": "Sign-off report (PDF)",
    "signoff.json": "Sign-off record (JSON)",
    "report.html": "Report",
    "comparison.csv": "Table (CSV)",
    "comparison.md": "Table (Markdown)",
    "comparison.json": "Comparison (JSON)",
}


@dataclass(frozen=True, slots=True)
class RunPage:
    """What a run's page is made of; `good` is the last run before it that passed."""

    series: Series
    night: Night
    entry: Entry
    good: str


def run_view(folder: RunFolder, shown: RunPage) -> dict[str, Any]:
    """Values of run.html, but for the files beside it."""
    entry = shown.entry
    run = folder.read_run()
    comparison = _comparison(folder, entry)
    captures = {score.arm: css_class(score.capture) for score in entry.scores}
    return {
        "entry": entry,
        "run": run,
        "status": entry.verdict or shown.night.status.value,
        "reasons": entry.reasons or (shown.night.why,),
        "captures": captures,
        "tasks": _tasks(shown.series, entry, comparison),
        "facts": _facts(run, entry),
        "good": shown.good,
    }


def named(documents: Sequence[str]) -> list[tuple[str, str]]:
    """(file, what it is called) of each document."""
    return [(file, DOCUMENT_NAMES.get(file, file)) for file in documents]


def _comparison(folder: RunFolder, entry: Entry) -> Comparison | None:
    if entry.state != "compared":
        return None
    try:
        return decode(Comparison, folder.read_text("comparison.json"), "comparison.json")
    except EvalHarnessError:  # replaced by something else since it was indexed
        return None


def _tasks(one: Series, entry: Entry, comparison: Comparison | None) -> list[dict[str, Any]]:
    details = {task.task: detail_lines(task) for task in comparison.tasks} if comparison else {}
    return [
        {"name": task, "slug": task_slug(one, task), "scores": entry.of(task), "details": details.get(task, [])}
        for task in entry.tasks
    ]


def _facts(run: Run, entry: Entry) -> Mapping[str, str]:
    """What ran where, as far as it was recorded."""
    facts = {
        "engine": entry.engine,
        "model": entry.model,
        "build": entry.version,
        "evalharness commit": f"{entry.commit[:12]}{' (changed)' * entry.is_dirty}",
        "GPU": entry.gpu or "none",
        "lm-eval": entry.lm_eval,
        "fingerprint": run.fingerprint[:16],
        "took": f"{entry.seconds:.0f} s" if entry.seconds is not None else "",
    }
    return {name: value for name, value in facts.items() if value}
