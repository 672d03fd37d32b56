"""Verification: every figure of a run's tables and reports recomputed from its answers, every hash checked."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evalharness.assess import Stored, read_stored, stored_policy
from evalharness.errors import EvalHarnessError, SpecError, UnknownName, UsageError
from evalharness.manifest import MANIFEST, SIGNATURE, Manifest, changes, check_signature, read_manifest
from evalharness.policy import Policy, load_policy
from evalharness.records import Comparison
from evalharness.reports import REPORTS, present, write_signoff, write_tables
from evalharness.reports.signoff import build
from evalharness.seal import code_version
from evalharness.store import RunFolder

if TYPE_CHECKING:
    from evalharness.rescore import Change

TOLERANCE: Final = 1e-9  # relative: another processor may add in another order
LISTED: Final = 8  # differences named of one file: what was changed should not drown in what follows from it
_STREAM: Final = re.compile(rb"stream\r?\n(.*?)\r?\n?endstream", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verification:
    """`problems` name what was changed, one sentence each; `notes` what could not be checked."""

    run_id: str
    verdict: str
    files: int
    samples: int
    figures: int
    documents: int
    signed_by: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def verify(folder: RunFolder, trusted: Path | None = None) -> Verification:
    """Check a run folder against its manifest and its own answers; `trusted` is a public key it must be signed by.

    Records that cannot be read any more are problems like any other. Raises UsageError when `trusted` is no key.
    """
    checks = _Checks(folder)
    checks.signature(trusted)
    for check in (checks.hashes, checks.figures):
        try:
            check()
        except EvalHarnessError as error:
            checks.problems.append(error.message)
    return checks.result()


def with_scores(found: Verification, folder: RunFolder, data: Path | None = None) -> Verification:
    """`found` with every answer scored again: a stored score that its response does not earn is a problem.

    Raises:
        DataError: the documents are missing, or are not those that were answered.
    """
    from evalharness.rescore import rescored_changes

    wrong = [
        f"samples/{task}/{arm}.jsonl: document {change.doc_id}, repeat {change.repeat} has {_words(change)}."
        for task, arm, change in rescored_changes(folder, data)
    ]
    return replace(found, problems=(*found.problems, *wrong))


def _words(change: Change) -> str:
    scores = [f"{name} {old}, its response scores {change.after[name]}" for name, old in change.before.items()]
    return "; ".join(scores) or f"cause {change.cause_before}, its response is {change.cause_after}"


class _Checks:
    """One verification in progress."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.manifest: Manifest | None = None
        self.stored: Stored | None = None
        self.comparison: Comparison | None = None
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.counted = {"figures": 0, "documents": 0}
        self.signed_by = ""

    @property
    def same_code(self) -> bool:
        return self.manifest is not None and self.manifest.code == code_version()

    def hashes(self) -> None:
        """Every file against the manifest."""
        self.manifest = read_manifest(self.folder)
        if self.manifest is None:
            self.problems.append(f"{MANIFEST} is missing: nothing says which files the run wrote.")
        else:
            self.problems += changes(self.folder, self.manifest)

    def signature(self, trusted: Path | None) -> None:
        """The signature, where there is one or `trusted` demands it."""
        if trusted is None and not (self.folder.path / SIGNATURE).exists():
            self.notes.append("The run is not signed: who can write all of its files can replace all of them.")
            return
        try:
            self.signed_by, wrong = check_signature(self.folder, trusted)
        except UsageError as error:
            if trusted is not None:
                raise
            self.notes.append(f"The signature was not checked. {error}")
            return
        if wrong:
            self.problems.append(wrong)
        elif trusted is None:
            self.notes.append(f"Signed by key {self.signed_by}; name the key you trust with --require-signature.")

    def figures(self) -> None:
        """Every table and report against what the answers give now."""
        policy = stored_policy(self.folder)
        self.stored = read_stored(self.folder, policy)
        self.comparison = self.stored.comparison
        if self.manifest is not None and self.manifest.run_id != self.stored.run.run_id:
            self.problems.append(f"{MANIFEST} is of run {self.manifest.run_id}.")
        self._note_versions(policy, str(self.stored.run.spec.get("policy", "")))
        for name, made in self._remade(self.stored, self.comparison).items():
            path = self.folder.path / name
            if path.exists():
                self._compare(name, path.read_bytes(), made)

    def _note_versions(self, policy: Policy | None, name: str) -> None:
        """What may make figures and documents differ without anybody having changed them."""
        if self.manifest is not None and not self.same_code:
            self.notes.append(
                "The reports were written by another version of evalharness: figures were recomputed, the wording and "
                "layout of HTML, PDF and Markdown were checked by hash only."
            )
        installed = _installed_policy(name)
        if policy is None:
            self.notes.append(f"The run keeps no policy of its own; it was judged by {name!r} as found here.")
        elif installed is not None and installed != policy:
            self.notes.append(f"The policy {name!r} that the run was judged by is not the one found here.")

    def _remade(self, stored: Stored, comparison: Comparison) -> dict[str, bytes]:
        tables = {name: text.encode() for name, text in write_tables(comparison).items()}
        for file, _ in REPORTS.values():
            if not (self.folder.path / file).exists():
                self.problems.append(f"{file} is missing: write it with evalharness compare.")
        return tables | write_signoff(build(stored, comparison), present(self.folder.path))

    def _compare(self, name: str, kept: bytes, made: bytes) -> None:
        reader = FIGURES.get(Path(name).suffix)
        if reader is not None:
            self._compare_figures(name, kept, made, reader)
        elif self.same_code:
            self.counted["documents"] += 1
            self.problems += _different_text(name, kept, made)

    def _compare_figures(self, name: str, kept: bytes, made: bytes, reader: Any) -> None:
        try:
            stored, recomputed = dict(_leaves(reader(kept))), dict(_leaves(reader(made)))
        except (ValueError, csv.Error):
            self.problems.append(f"{name} cannot be read.")
            return
        self.counted["documents"] += 1
        self.counted["figures"] += sum(_is_figure(value) for value in recomputed.values())
        found = list(_different_figures(name, stored, recomputed, strict=self.same_code))
        more = [f"{name}: {len(found) - LISTED} more differences."] if len(found) > LISTED else []
        self.problems += found[:LISTED] + more

    def result(self) -> Verification:
        answers = self.stored.samples if self.stored else {}
        return Verification(
            run_id=self.stored.run.run_id if self.stored else self.folder.path.name,
            verdict=self.comparison.verdict.outcome.value if self.comparison else "cannot be recomputed",
            files=len(self.manifest.files) if self.manifest else 0,
            samples=sum(len(rows) for arms in answers.values() for rows in arms.values()),
            figures=self.counted["figures"],
            documents=self.counted["documents"],
            signed_by=self.signed_by,
            problems=tuple(self.problems),
            notes=tuple(self.notes),
        )


def _installed_policy(name: str) -> Policy | None:
    try:
        return load_policy(name)
    except (SpecError, UnknownName):
        return None


def _read_csv(data: bytes) -> dict[str, dict[str, str]]:
    rows = csv.DictReader(io.StringIO(data.decode()))
    return {f"{row.get('task')}/{row.get('metric')}/{row.get('arm')}": row for row in rows}


FIGURES: Final = {".json": json.loads, ".csv": _read_csv}


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in JSON data; a list entry is named by its task, arm, metric or number."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{path}[{_entry_name(value, index)}]")
    else:
        yield path, data


def _entry_name(value: Any, index: int) -> str:
    if isinstance(value, dict):
        names = [str(value[key]) for key in ("task", "arm", "baseline", "metric") if isinstance(value.get(key), str)]
        if names:
            return " ".join([*names, *([str(value["doc_id"])] if "doc_id" in value else [])])
    return str(index)


def _different_figures(name: str, stored: dict[str, Any], made: dict[str, Any], *, strict: bool) -> Iterator[str]:
    for path in [*made, *(path for path in stored if path not in made)]:
        if path not in stored:
            if strict:
                yield f"{name}: {path} is missing; recomputed {_shown(made[path])}."
        elif path not in made:
            yield f"{name}: {path} is {_shown(stored[path])}, which nothing in the answers gives."
        elif not _same(stored[path], made[path]):
            yield f"{name}: {path} is {_shown(stored[path])}, recomputed {_shown(made[path])}."


def _same(one: Any, two: Any) -> bool:
    if one == two:
        return True
    first, second = _number(one), _number(two)
    return first is not None and second is not None and isclose(first, second, rel_tol=TOLERANCE, abs_tol=1e-12)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_figure(value: Any) -> bool:
    return _number(value) is not None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _different_text(name: str, kept: bytes, made: bytes) -> Iterator[str]:
    if name.endswith(".pdf"):
        if _streams(kept) != _streams(made):
            yield f"{name} is not the document that the answers give."
        return
    if kept == made:
        return
    one, two = (data.decode("utf-8", "replace").splitlines() for data in (kept, made))
    number = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    stored, recomputed = (lines[number].strip() if number < len(lines) else "" for lines in (one, two))
    at = next((i for i, (a, b) in enumerate(zip(stored, recomputed, strict=False)) if a != b), 0)
    window = slice(max(0, at - 30), at + 50)
    yield f"{name} line {number + 1} reads {_shown(stored[window])}, recomputed {_shown(recomputed[window])}."


def _streams(pdf: bytes) -> list[bytes]:
    """What a PDF draws, unpacked: another zlib may pack the same content in other bytes."""
    return [_unpacked(found[1]) for found in _STREAM.finditer(pdf)]


def _unpacked(stream: bytes) -> bytes:
    try:
        packed = base64.a85decode(stream.rstrip()[:-2]) if stream.rstrip().endswith(b"~>") else stream
        return zlib.decompress(packed)
    except (ValueError, zlib.error):
        return stream
