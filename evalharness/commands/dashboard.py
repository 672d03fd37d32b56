"""The history of runs, the static site and its server."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evalharness.errors import UsageError
from evalharness.reports.dashboard import build
from evalharness.reports.dashboard.exports import COLUMNS, history_rows
from evalharness.watch.archive import Wanted, archived_rows, night_folders
from evalharness.watch.events import open_events
from evalharness.watch.history import read_history
from evalharness.watch.jobs import FILE, load_schedule

TOKEN_VARIABLE = "EVALHARNESS_TOKEN"  # noqa: S105 - the name of a variable
SHOWN = ("run_id", "task", "arm", "n", "value", "low", "high", "task_verdict")
console = Console(highlight=False)


def history(results: Path, wanted: Wanted, form: str, newest: int | None = None) -> int:
    """Print the figures asked for as a table, CSV or JSON: of `results`, or of the `newest` nights under it."""
    if newest is None:
        rows = [row for row in history_rows(read_history(results)) if wanted.takes(row)]
    else:
        rows = [row for night in night_folders(results, newest) for row in archived_rows(night, wanted)]
    if form == "json":
        print(json.dumps(rows, allow_nan=False, indent=1))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print_table(rows)
    return 0


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("run", "task", "arm", "n", "value", "interval", "verdict", box=None, pad_edge=False)
    for row in rows:
        if "task" not in row:
            table.add_row(escape(row["run_id"]), "", "", "", "", "", escape(row["problem"] or row["state"]))
            continue
        run, task, arm, n, value, low, high, verdict = (row[name] for name in SHOWN)
        interval = "" if low is None else f"{low:.3f}-{high:.3f}"
        figure = "" if value is None else f"{value:.3f}"
        table.add_row(escape(run), escape(task), escape(arm), str(n), figure, interval, verdict)
    wide = max((len(row["run_id"]) for row in rows), default=0) + 70  # an id cut short could not be copied
    Console(highlight=False, width=max(console.width, wide)).print(table)


def build_site(results: Path, site: Path, config: Path | None) -> int:
    """Build the site once; 0 even when a night is red: the pages say so."""
    built = build(results, site, load_schedule(config or results / FILE), datetime.now(UTC))
    nights = sum(len(one.nights) for one in built.series)
    console.print(
        f"{site}: {len(built.series)} series, {nights} nights, {built.made} run pages made, {built.kept} kept"
        + (f", {built.unreadable} folders are no readable run" if built.unreadable else ""),
        markup=False,
    )
    for event in open_events(built.events):
        console.print(f"open: {event.summary}", markup=False)
    return 0


def serve(results: Path, host: str, port: int, site: Path | None, config: Path | None) -> int:
    """Serve until interrupted."""
    from evalharness.reports.dashboard.server import DashboardServer, token_for

    if not results.is_dir():
        raise UsageError(f"Results folder {results} is not there.", "Name it with --results.")
    token = token_for(host, os.environ.get(TOKEN_VARIABLE, ""))
    schedule = load_schedule(config or results / FILE)
    with tempfile.TemporaryDirectory(prefix="evalharness-") as folder:
        server = DashboardServer((host, port), results, site or Path(folder) / "site", schedule, token)
        where = f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}/"
        try:
            console.print(f"serving {where}{f'?token={token}' if token else ''} (Ctrl-C ends it)", markup=False)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
    return 0
