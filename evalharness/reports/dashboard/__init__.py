"""The accuracy dashboard: a static site over the history of runs, which opens from a disk as from a server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from evalharness.reports.dashboard.compare_page import compare_view, run_data
from evalharness.reports.dashboard.exports import lm_eval_results, prometheus
from evalharness.reports.dashboard.overview import overview, run_list
from evalharness.reports.dashboard.render import ASSETS, page
from evalharness.reports.dashboard.run_page import RunPage, named, run_view
from evalharness.reports.dashboard.site import SiteDraft, replacing
from evalharness.reports.dashboard.task_page import task_slug, task_view
from evalharness.store import RunFolder
from evalharness.watch.events import Event, events
from evalharness.watch.history import DOCUMENTS, Entry, read_history
from evalharness.watch.jobs import Schedule
from evalharness.watch.nights import Series, Status, series

COPIED: Final = (*DOCUMENTS, "comparison.json")


@dataclass(frozen=True, slots=True)
class Built:
    """What a build found: series, their events, and how many run pages were made anew or kept."""

    series: tuple[Series, ...]
    events: tuple[Event, ...]
    made: int
    kept: int
    unreadable: int


def build(results: Path, site: Path, schedule: Schedule, now: datetime, *, live: bool = False) -> Built:
    """Build the site of `results` into `site`, which is replaced in one step; pages of unchanged runs are kept.
    `live` links every page to the server's page of runs in progress.

    Raises:
        StoreError: the folder cannot be written, or holds something that is not a dashboard.
    """
    entries = read_history(results)
    found = series(entries, schedule, now)
    all_events = [event for one in found for event in events(one, schedule.repository)]
    with replacing(site, f"{generator()}{'-live' * live}") as draft:
        common = _common(found, now) | {"live": live}
        _write_overview(draft, common, found, entries, all_events)
        for one in found:
            _write_tasks(draft, common, one, [event for event in all_events if event.profile == one.profile])
        made, kept = _write_runs(draft, results, found, live=live)
    unreadable = sum(entry.state == "unreadable" for entry in entries)
    return Built(tuple(found), tuple(all_events), made, kept, unreadable)


@cache
def generator() -> str:
    """Changes whenever this package's code does: pages of another one are made anew."""
    digest = hashlib.sha256()
    own = resources.files("evalharness.reports.dashboard")
    for part in (own, own / "templates", own / "assets"):
        for file in sorted(part.iterdir(), key=lambda f: f.name):
            if file.is_file():
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _common(found: Sequence[Series], now: datetime) -> dict[str, Any]:
    """What every page needs: when it was built, and by when a newer one is due."""
    dues = [one.job.next_due(now) + one.job.grace + one.job.timeout for one in found if one.job]
    return {"built": now, "stale_after": min(dues, default=None)}


def _write_overview(
    draft: SiteDraft,
    common: dict[str, Any],
    found: Sequence[Series],
    entries: Sequence[Entry],
    all_events: Sequence[Event],
) -> None:
    now = common["built"]
    draft.write("index.html", page("index.html", "", **common, **overview(found, all_events, entries, now)))
    draft.write("runs.html", page("runs.html", "", **common, **run_list(found, entries)))
    draft.write("compare.html", page("compare.html", "", **common, **compare_view(found)))
    draft.write("metrics.prom", prometheus(found, now))
    for name in ASSETS:
        draft.write(f"assets/{name}", (resources.files(__package__) / "assets" / name).read_bytes())


def _write_tasks(draft: SiteDraft, common: dict[str, Any], one: Series, own: Sequence[Event]) -> None:
    for task in one.tasks:
        draft.write(
            f"tasks/{task_slug(one, task)}.html", page("task.html", "../", **common, **task_view(one, task, own))
        )


def _write_runs(draft: SiteDraft, results: Path, found: Sequence[Series], *, live: bool) -> tuple[int, int]:
    """A folder for each run; returns how many were made and how many kept."""
    made = kept = 0
    for one in found:
        good = ""
        for night in one.nights:
            entry = night.entry
            if entry is None:
                continue
            if draft.keep(f"runs/{entry.run_id}", entry.signature):
                kept += 1
            else:
                _write_run(draft, results, RunPage(one, night, entry, good), live=live)
                made += 1
            good = entry.run_id if entry.verdict == Status.PASS else good
    return made, kept


def _write_run(draft: SiteDraft, results: Path, shown: RunPage, *, live: bool) -> None:
    entry = shown.entry
    name, folder = f"runs/{entry.run_id}", RunFolder(results / entry.folder)
    documents = [file for file in COPIED if (folder.path / file).is_file()]
    exports = lm_eval_results(entry)
    for file in documents:
        draft.copy(folder.path / file, f"{name}/{file}")
    for file, text in exports.items():
        draft.write(f"{name}/{file}", text)
    draft.write(f"{name}/data.js", f"evalharnessRun({json.dumps(run_data(entry), allow_nan=False)});\n")
    values = run_view(folder, shown) | {"documents": named(documents), "exports": list(exports)}
    draft.write(f"{name}/index.html", page("run.html", "../../", live=live, **values))
