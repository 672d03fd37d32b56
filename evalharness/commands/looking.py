"""Looking around: what can be named, what this machine can run. Loads nothing that compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from evalharness.commands.screen import console
from evalharness.engines.base import ENGINES
from evalharness.errors import UnknownName
from evalharness.runner.choose import default_profile
from evalharness.runner.doctor import examine
from evalharness.runner.executors import EXECUTORS
from evalharness.spec import CAPTURES, profiles
from evalharness.store import list_runs


def list_names(what: str, out: Path) -> None:
    """Print the names of one kind with a word on each."""
    if what not in LISTS:
        raise UnknownName("list", what, LISTS)
    table = Table("name", "what it is", box=None, show_header=False, pad_edge=False)
    for name, description in LISTS[what](out).items():
        table.add_row(escape(name), escape(description))
    console.print(table)


def doctor(out: Path) -> int:
    """Print every check; 0 when the built-in engine can run."""
    checks = examine(out)
    table = Table("", "check", "found", "remedy", box=None, pad_edge=False)
    for check in checks:
        table.add_row("ok" if check.ok else "--", check.name, escape(check.found), escape(check.remedy))
    console.print(table)
    reference, why = default_profile()
    console.print(f"`evalharness run` takes profile {reference}: {escape(why)}")
    return 0 if all(check.ok for check in checks if check.needed) else 5


def _tasks(_: Path) -> Mapping[str, str]:
    from evalharness.scoring.tasks import task_names

    return task_names()


ARMS = {
    "eager": "the same engine without graph dispatch; the reference of every comparison",
    "stock": "warm-up and capture share one attention state: the fault of vLLM before #42444",
    "patched": "the captured call gets a fresh attention state: the repair",
    "native": "whatever the installed engine does by itself",
}
LISTS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "profiles": lambda _: profiles(),
    "tasks": _tasks,
    "arms": lambda _: {name: ARMS[name] for name in CAPTURES},
    "engines": lambda _: {name: about for name, (_, about) in ENGINES.items()},
    "executors": lambda _: {name: about for name, (_, about) in EXECUTORS.items()},
    "runs": lambda out: {path.name: str(path.parent) for path in list_runs(out)},
}
