"""Turns lm-eval runs into one run: an lm-eval run is an arm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalharness.errors import DataError, PairingError
from evalharness.importing.lm_eval_files import Results, find_results, sample_lines
from evalharness.importing.lm_eval_samples import Findings, read_samples
from evalharness.provenance import fingerprint, sha256_file
from evalharness.records import ArmEvidence, ArmState, ArmSummary, Run, Sample
from evalharness.spec import NAME, ArmSpec
from evalharness.store import RunFolder

POLICY = "endpoint"  # nothing proves by which path an imported arm was captured
# What lm-eval records of a run and two arms should share.
SETTINGS = ("model_name", "chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn", "lm_eval_version")
ON_TRUST = "Imported from lm-eval: its capture path is the user's word."


@dataclass(frozen=True, slots=True)
class Imported:
    """One arm read from disk."""

    arm: ArmSpec
    results: Results
    samples: Mapping[str, Sequence[Sample]]
    hashes: Mapping[str, str]


def import_lm_eval(sources: Sequence[str], out: Path) -> tuple[RunFolder, list[str]]:
    """Write the lm-eval runs `sources` (`eager=PATH`; PATH a results file or a folder with one) as a run under `out`.
    Returns its folder and what a reader must be told.

    Raises:
        DataError: a source is missing, ambiguous, or has no samples.
        UnknownName: an arm that does not exist.
        PairingError: two sources give one arm the same task.
        StoreError: the run cannot be written.
    """
    notes: list[str] = []
    read = [_read(arm, path, notes) for arm, path in map(_named, _all_named(sources))]
    _refuse_doubles(read)
    notes += _differences(read)
    folder, _ = RunFolder.create(out, _run(read, notes))
    for imported in read:
        for samples in imported.samples.values():
            folder.append(samples)
        folder.write_evidence(_evidence(imported, read[0]))
    return folder, notes


def _all_named(sources: Sequence[str]) -> Sequence[str]:
    unnamed = [source for source in sources if "=" not in source]
    if unnamed and len(sources) > 1:
        raise DataError(f"{unnamed[0]} names no arm.", "Write which arm each run is: eager=PATH stock=PATH.")
    return [f"native={source}" if source in unnamed else source for source in sources]


def _named(source: str) -> tuple[ArmSpec, Path]:
    name, _, path = source.partition("=")
    return ArmSpec.parse(name), Path(path)


def _read(arm: ArmSpec, path: Path, notes: list[str]) -> Imported:
    results = find_results(path)
    samples, hashes = {}, {}
    for task in results.tasks:
        file = _samples_file(results, task, notes)
        if file is None:
            continue
        told = Findings()
        samples[task] = list(read_samples(task, arm.name, sample_lines(file), told))
        hashes[task] = sha256_file(file)
        notes += told.sentences(f"{arm.name}, {task}")
        notes += _missing(arm, results, task, samples[task])
    if not any(samples.values()):
        raise DataError(
            f"{results.path} has no samples beside it.",
            "Run lm_eval again with --log_samples; totals cannot be paired.",
        )
    return Imported(arm, results, samples, hashes)


def _samples_file(results: Results, task: str, notes: list[str]) -> Path | None:
    if not re.fullmatch(NAME, task):
        notes.append(f"A task is left out, for its name cannot be a file's: {task[:60]!r}.")
        return None
    file = results.samples_file(task)
    if file is None:
        notes.append(
            f"{task} is left out: {results.path.name} has no samples file of it (a group, or no --log_samples)."
        )
    return file


def _missing(arm: ArmSpec, results: Results, task: str, samples: Sequence[Sample]) -> Iterator[str]:
    expected, documents = results.expected(task), len({sample.doc_id for sample in samples})
    if expected is not None and documents < expected:
        yield f"{arm.name}, {task}: samples of {expected - documents} of {expected} documents are missing."


def _refuse_doubles(read: Sequence[Imported]) -> None:
    seen = set()
    for imported in read:
        for task in imported.samples:
            if (imported.arm.name, task) in seen:
                raise PairingError(
                    f"Two sources give arm {imported.arm.name} the task {task}.",
                    f"Leave one out, or name the second one {imported.arm.name}#2.",
                )
            seen.add((imported.arm.name, task))


def _differences(read: Sequence[Imported]) -> list[str]:
    """Settings in which an arm differs from the first one."""
    first = read[0]
    return [
        f"{other.arm.name} differs from {first.arm.name} in {key}: {theirs} and {ours}."
        for other in read[1:]
        for key in SETTINGS
        if (theirs := other.results.text(key)) != (ours := first.results.text(key))
    ]


def _run(read: Sequence[Imported], notes: Sequence[str]) -> Run:
    arms = {imported.arm.name: imported.arm for imported in read}
    tasks = dict.fromkeys(task for imported in read for task in imported.samples)
    identity = {f"{i.arm.name}, {task}": digest for i in read for task, digest in i.hashes.items()}
    model = read[0].results.text("model_name") or "unknown"
    return Run(
        run_id="",
        name="lm-eval",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=fingerprint(identity),
        identity=identity,
        spec={
            "name": "lm-eval",
            "engine": {"kind": "lm-eval", "model": model},
            "arms": [{"name": arm.name, "capture": arm.capture} for arm in arms.values()],
            "tasks": [{"name": task} for task in tasks],
            "policy": POLICY,
        },
        provenance={"imported": [_origin(imported) for imported in read], "notes": list(notes)},
        arms=tuple(_summary(arm, read) for arm in arms.values()),
    )


def _summary(arm: ArmSpec, read: Sequence[Imported]) -> ArmSummary:
    count = sum(len(samples) for i in read if i.arm.name == arm.name for samples in i.samples.values())
    return ArmSummary(arm.name, arm.capture, ArmState.DONE, count)


def _origin(imported: Imported) -> dict[str, Any]:
    """Where an arm comes from; names and hashes only, for lm-eval's model_args may hold a path or a key."""
    settings = {key: imported.results.text(key) for key in ("git_hash", *SETTINGS)}
    return {"arm": imported.arm.name, "file": imported.results.path.name, **settings}


def _evidence(imported: Imported, first: Imported) -> ArmEvidence:
    def settings(results: Results) -> dict[str, str]:
        return {key: value for key in SETTINGS if (value := results.text(key)) is not None}

    return ArmEvidence(
        arm=imported.arm.name,
        engine="lm-eval",
        engine_version=imported.results.text("lm_eval_version") or "unknown",
        requested=settings(first.results),
        observed=settings(imported.results),
        notes=(ON_TRUST,),
    )
