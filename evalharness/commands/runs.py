"""Running and comparing."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import yaml
from rich.markup import escape

from evalharness.assess import assess_pair, read_stored
from evalharness.commands.screen import console
from evalharness.errors import UsageError
from evalharness.reports import pair, present
from evalharness.reports.terminal import render
from evalharness.runner.choose import Choice, default_profile, resolve
from evalharness.runner.executors import Placement, connected
from evalharness.runner.listener import Listener
from evalharness.runner.progress import RichListener
from evalharness.seal import seal
from evalharness.spec import RunSpec, parse_spec
from evalharness.store import RunFolder, find_run

INTERRUPTED = 130
OPTIONS: Final = {"reference": "a profile", "settings": "--set", "stop_early": "--stop-early"}  # as a user writes them


def run(choice: Choice, out: Path, resume: str | None, dry_run: bool, placement: Placement) -> int:
    """Run or resume, compare, print; the exit code is the verdict's."""
    listener = RichListener(console)
    if resume is not None:
        _nothing_but_the_run(choice)
        target = find_run(out, resume)
        begun = target.read_run().spec
        if dry_run:
            return _print_spec(begun)
        return _watched(lambda: _resumed(target, parse_spec(begun), placement, listener), listener, out)
    reference = choice.reference
    if reference is None:
        reference, why = default_profile(choice)
        console.print(f"profile {reference}: {escape(why)}")
    spec = resolve(choice, reference)
    if dry_run:
        return _print_spec(spec.model_dump(mode="json"))
    return _watched(lambda: _started(spec, out, placement, listener), listener, out)


def _started(spec: RunSpec, out: Path, placement: Placement, listener: Listener) -> RunFolder:
    from evalharness.runner import local

    with connected(placement, spec) as executor:
        return local.start(spec, out, listener, executor)


def _resumed(folder: RunFolder, spec: RunSpec, placement: Placement, listener: Listener) -> RunFolder:
    from evalharness.runner import local

    with connected(placement, spec) as executor:
        return local.resume(folder, listener, executor)


def _nothing_but_the_run(choice: Choice) -> None:
    """A run goes on as it was begun: an option that would be ignored is refused."""
    given = [field.name for field in fields(choice) if getattr(choice, field.name) != field.default]
    if given:
        named = ", ".join(OPTIONS.get(name, f"--{name}") for name in given)
        raise UsageError(f"--resume keeps the spec of its run; {named} cannot change it.", "Leave it out.")


def _print_spec(spec: Mapping[str, Any]) -> int:
    console.print(yaml.safe_dump(dict(spec), sort_keys=False), markup=False, soft_wrap=True)
    return 0


def _watched(work: Callable[[], RunFolder], listener: RichListener, out: Path) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop saves what Ctrl-C would save
    try:
        folder = work()
    except KeyboardInterrupt:
        listener.close()
        console.print(_how_to_go_on(listener.run_id, out), markup=False, soft_wrap=True)
        return INTERRUPTED
    finally:
        listener.close()
    return _report(folder)


def _how_to_go_on(run_id: str, out: Path) -> str:
    """What an interrupted user is told; the command stands at the end of one line, to be copied."""
    if not run_id:
        return "interrupted before it began: nothing was changed; give the same command again"
    place = "" if out == Path("results") else f" --out {shlex.quote(str(out))}"
    return f"interrupted: finished answers are saved; go on with: evalharness run --resume {run_id}{place}"


def _report(folder: RunFolder) -> int:
    """Compare a stored run, write its tables into its folder, print them."""
    stored = read_stored(folder)
    comparison = stored.comparison
    for notice in seal(folder, stored, comparison, present(folder.path)):  # no report is left of an earlier state
        console.print(f"note: {notice}", markup=False)
    console.print(render(comparison))
    console.print(f"written to {folder.path}", markup=False, soft_wrap=True)
    return comparison.verdict.outcome.exit_code


def compare(first: str, out: Path) -> int:
    """Compare the arms of one stored run again."""
    return _report(find_run(out, first))


def compare_pair(first: str, second: str, out: Path) -> int:
    """Compare every arm of a stored run with its namesake in an earlier one; writes nothing."""
    found = assess_pair(find_run(out, first), find_run(out, second))
    console.print(pair.render(found))
    return found.outcome.exit_code
