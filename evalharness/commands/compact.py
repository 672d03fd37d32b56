"""Making finished runs small, and undoing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evalharness.compaction import Compaction, compact, restore
from evalharness.errors import EvalHarnessError, UsageError
from evalharness.store import RunFolder, find_run, list_runs

FAILED = EvalHarnessError.exit_code
console = Console(highlight=False)


def compact_runs(references: Sequence[str], out: Path, *, everything: bool, undo: bool) -> int:
    """Pack (or restore) runs; one that cannot be is named, and the others go on."""
    if bool(references) == everything:
        raise UsageError("Name runs, or say --all.", "For example: evalharness compact latest")
    chosen = _all_finished(out) if everything else [find_run(out, reference) for reference in references]
    failed = 0
    for folder in chosen:
        try:
            _print(restore(folder) if undo else compact(folder))
        except EvalHarnessError as error:
            failed += 1
            console.print(f"error: {error}", markup=False, soft_wrap=True)
    return FAILED if failed else 0


def _all_finished(out: Path) -> list[RunFolder]:
    """Runs that are complete, but for the published: those are part of a repository as they are."""
    folders = [RunFolder(path) for path in list_runs(out) if path.parent != out / "published"]
    return [folder for folder in folders if _is_finished(folder)]


def _is_finished(folder: RunFolder) -> bool:
    try:
        return folder.read_run().finished is not None
    except EvalHarnessError:
        return True  # what is wrong with it is said when it is packed


def _print(done: Compaction) -> None:
    sizes = f"{done.before / 1e3:,.0f} kB -> {done.after / 1e3:,.0f} kB" if done.before != done.after else "as it was"
    console.print(f"{done.run_id}: {done.samples:,} answers, {sizes}", markup=False, soft_wrap=True)
