"""Sign-off reports, their verification, and scoring stored answers again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from evalharness.assess import read_stored
from evalharness.errors import StoreError, UnknownName, UsageError
from evalharness.manifest import sign
from evalharness.reports import SIGNOFF, write_signoff
from evalharness.reports.signoff import build
from evalharness.reports.words import figure, plain
from evalharness.seal import seal
from evalharness.store import RunFolder, find_run, list_runs
from evalharness.verify import Verification, verify, with_scores

if TYPE_CHECKING:
    from evalharness.rescore import Change, Rescored

LISTED: Final = 20  # changed scores named of each arm
console = Console(highlight=False, soft_wrap=True)


def report(
    reference: str,
    results: Path,
    formats: str,
    out: Path | None = None,
    key: Path | None = None,
    job_summary: Path | None = None,
) -> int:
    """Write the sign-off of a run; the exit code is the verdict's."""
    names = _formats(formats)
    if key is not None and out is not None and not list_runs(out):
        raise UsageError("--sign signs a run's own folder, and --out names another.", "Leave out one of the two.")
    folder, out = _locate(reference, results, out)
    stored = read_stored(folder)
    comparison = stored.comparison
    if out is not None:
        _write(out, write_signoff(build(stored, comparison), names))
    else:
        for notice in seal(folder, stored, comparison, names):
            _say(f"note: {notice}")
    if key is not None:
        _say(f"signed by key {sign(folder, key)}")
    if job_summary is not None:
        _append(job_summary, write_signoff(build(stored, comparison), ["md"])["signoff.md"])
    _say(f"{comparison.verdict.outcome.value}: {plain(comparison.run_id)}")
    for file in (file for name in names for file, _ in SIGNOFF[name]):
        _say(str((out or folder.path) / file))
    return comparison.verdict.outcome.exit_code


def verify_run(reference: str, results: Path, trusted: Path | None, rescoring: bool, data: Path | None) -> int:
    """Verify a run and say what was checked; 0 when nothing is wrong, else 1."""
    folder = find_run(results, reference)
    found = verify(folder, trusted)
    if rescoring and found.samples:
        found = with_scores(found, folder, data)
    for line in _findings(found):
        _say(line)
    return 1 if found.problems else 0


def _findings(found: Verification) -> list[str]:
    signed = f", signed by key {found.signed_by}" if found.signed_by else ""
    checked = (
        f"{plain(found.run_id)}: {found.files} files, {found.samples:,} answers, {found.figures:,} figures in "
        f"{found.documents} documents{signed}"
    )
    head = "NOT VERIFIED" if found.problems else "VERIFIED"
    problems = [f"  {plain(problem)}" for problem in found.problems]
    return [f"{head} {checked}", *problems, *(f"  note: {plain(note)}" for note in found.notes),
            f"  verdict of the answers: {found.verdict}"]  # fmt: skip


def _formats(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SIGNOFF:
            raise UnknownName("format", name, SIGNOFF)
    if not names:
        raise UsageError("No format is named.", f"Choose from: {', '.join(SIGNOFF)}.")
    return list(dict.fromkeys(names))


def _locate(reference: str, results: Path, out: Path | None) -> tuple[RunFolder, Path | None]:
    """The run, and where its documents go if not into its own folder. An `out` that holds runs is a results folder
    as in every other command: the run is looked up there and keeps its documents."""
    if out is not None and list_runs(out):
        return find_run(out, reference), None
    return find_run(results, reference), out


def _write(folder: Path, made: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Cannot write {folder}: {error.strerror}.", "Choose another folder with --out.") from error
    for name, content in made.items():
        RunFolder(folder).write_bytes(name, content)


def _append(path: Path, content: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise StoreError(f"Cannot append to {path}: {error.strerror}.", "Name a file that can be written.") from error


def _say(line: str) -> None:
    console.print(line, markup=False)


def rescore(reference: str, results: Path, task: str | None, data: Path | None) -> int:
    """Score a run or a file of answers again, write the new version beside the old one, show what changed."""
    from evalharness.rescore import rescore_file, rescore_run

    path = Path(reference)
    if path.is_file():
        found = [rescore_file(path, task, data)]
    else:
        folder, found = rescore_run(find_run(results, reference), task, data)
        stored = read_stored(folder)
        seal(folder, stored, stored.comparison)
        _say(f"written to {folder.path}")
    for result in found:
        for line in _rescored(result):
            _say(line)
    return 0


def _rescored(result: Rescored) -> list[str]:
    head = (
        f"{plain(result.task)} {plain(result.arm)}: n {result.n}, accuracy {figure(result.before)} before, "
        f"{figure(result.after)} now, {figure(result.robust)} by the robust extractor "
        f"({result.disagreements} disagree); {len(result.changes)} answers changed"
    )
    lines = [f"  {_change(change)}" for change in result.changes[:LISTED]]
    more = len(result.changes) - LISTED
    lines += [f"  and {more} more"] if more > 0 else []
    return [head, *lines, *(f"  note: {note}" for note in result.notes), f"  scores in {result.written}"]


def _change(change: Change) -> str:
    scores = ", ".join(
        f"{name} {figure(old, 0)} -> {figure(change.after[name], 0)}" for name, old in change.before.items()
    )
    causes = f"{change.cause_before} -> {change.cause_after}" if change.cause_before else change.cause_after
    read = "nothing" if change.extracted is None else plain(change.extracted[:40])
    return f"document {change.doc_id}, repeat {change.repeat}: {plain(scores) or 'same scores'}; {causes}; read {read}"
