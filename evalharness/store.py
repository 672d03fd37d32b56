"""results/<run_id>/: the only place that writes records. Files are replaced whole or only appended to."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from evalharness import columnar
from evalharness.errors import RecordError, StoreError, UnknownName, UsageError, first_fault
from evalharness.records import SCHEMA_VERSION, ArmEvidence, Cause, Run, Sample

Record = TypeVar("Record")
STAMP = "%Y%m%dT%H%M%SZ"
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
FILE_SUFFIXES = {".json", ".jsonl", ".csv", ".md", ".html", ".pdf", ".yaml", ".yml", ".txt"}
PRUNED = "pruned.txt"  # stands in a run's folder once its answers were deleted by a retention policy
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SAFE_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@#-]{0,120}")


def encode(record: object) -> str:
    """One line of strict JSON (NaN and infinities become null)."""
    return _adapter(type(record)).dump_json(record).decode()


def pretty(record: object, indent: int = 2) -> str:
    """A record as a file of strict JSON for people; a figure that does not exist is null."""
    return json.dumps(json.loads(encode(record)), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def decode(kind: type[Record], text: str | bytes, where: str) -> Record:
    """Read one record of `kind`; raises RecordError naming `where`."""
    with suppress(ValidationError):  # what is wrong is found out below; a million lines are right
        read: Record = _adapter(kind).validate_json(text)
        if getattr(read, "schema_version", SCHEMA_VERSION) <= SCHEMA_VERSION:
            return read
    return _decode_carefully(kind, text, where)


def _decode_carefully(kind: type[Record], text: str | bytes, where: str) -> Record:
    """As `decode`, in two steps, with a word for every fault."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{where} is not valid JSON.", "Restore or remove it, then resume the run.") from error
    version = raw.get("schema_version", SCHEMA_VERSION) if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RecordError(
            f"{where} has schema version {version}; this evalharness reads up to {SCHEMA_VERSION}.",
            "Update evalharness.",
        )
    try:
        record: Record = _adapter(kind).validate_python(raw)
    except ValidationError as error:
        field, fault = first_fault(error)
        raise RecordError(f"{where} is not a {kind.__name__}: {field}: {fault}.", "Restore the file.") from error
    return record


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


class RunFolder:
    """One run on disk. Every method raises StoreError when the folder cannot be written and
    RecordError when what it holds cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, results: Path, run: Run) -> tuple[RunFolder, Run]:
        """Make a folder of its own for `run`, moving its time stamp on by a second while the name is taken.

        Raises:
            UsageError: `results` is named like a file, which whoever wrote it would look for in vain.
        """
        if results.suffix in FILE_SUFFIXES and not results.is_dir():
            raise UsageError(f"{results} is named like a file.", "Runs are folders: give a folder with --out.")
        stamp = datetime.fromisoformat(run.created)
        with writing(results):
            results.mkdir(parents=True, exist_ok=True)
            while True:
                named = replace(run, run_id=run_id(stamp, run.name, run.fingerprint))
                try:
                    (results / named.run_id).mkdir()
                    break
                except FileExistsError:
                    stamp += timedelta(seconds=1)
        folder = cls(results / named.run_id)
        folder.write_run(named)
        return folder, named

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; a second writer is refused. What a killed one left half written is removed."""
        with writing(self.path), (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(
                    f"Another process is writing {self.path.name}.", "Wait for it to end, or stop it."
                ) from error
            _remove_unfinished(self.path)
            yield

    def write_run(self, run: Run) -> None:
        """Replace run.json."""
        self.write_text("run.json", pretty(run))

    def read_run(self) -> Run:
        """Read run.json."""
        return decode(Run, self.read_text("run.json"), f"{self.path.name}/run.json")

    def write_evidence(self, evidence: ArmEvidence) -> None:
        """Replace evidence/<arm>.json."""
        self.write_text(f"evidence/{_part(evidence.arm)}.json", pretty(evidence))

    def read_evidence(self) -> dict[str, ArmEvidence]:
        """Evidence by arm, as far as it was written."""
        files = sorted((self.path / "evidence").glob("*.json"))
        found = (decode(ArmEvidence, f.read_bytes(), f"{self.path.name}/evidence/{f.name}") for f in files)
        return {evidence.arm: evidence for evidence in found}

    def samples_path(self, task: str, arm: str) -> Path:
        """Where the samples of (task, arm) lie, or lay before the run was compacted."""
        return self.path / "samples" / _part(task) / f"{_part(arm)}.jsonl"

    @property
    def packed(self) -> Path:
        """The Parquet file that holds the samples of a compacted run; one still in samples/ is read first."""
        return self.path / columnar.FILE

    def sample_files(self) -> list[str]:
        """Paths inside the run of its samples files, packed ones included; raises RecordError."""
        loose = (path.relative_to(self.path).as_posix() for path in self.path.glob("samples/*/*.jsonl"))
        return sorted({*loose, *columnar.read_parts(self.packed)})

    def sample_lines(self, name: str) -> Iterator[bytes]:
        """Whole lines of the samples file `name`, packed or not; raises RecordError."""
        with suppress(FileNotFoundError):  # packed, perhaps since it was listed
            yield from _whole_lines(self.path / name)
            return
        if name in columnar.read_parts(self.packed):
            yield from columnar.read_lines(self.packed, name)

    def refuse_compacted(self) -> None:
        """Raise StoreError where nothing can be appended, because the answers are packed."""
        if self.packed.exists():
            raise StoreError(
                f"The answers of {self.path.name} are compacted: nothing can be added to them.",
                f"Unpack them first: evalharness compact --restore {self.path.name}",
            )

    def append(self, samples: Iterable[Sample]) -> None:
        """Append and fsync samples of one (task, arm) or many; whole lines only."""
        by_file: dict[Path, list[str]] = {}
        for sample in samples:
            by_file.setdefault(self.samples_path(sample.task, sample.arm), []).append(encode(sample))
        if by_file:
            self.refuse_compacted()
        for path, lines in by_file.items():
            with writing(self.path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _append_lines(path, lines)

    def read_samples(self, task: str, arm: str) -> list[Sample]:
        """Samples in the order written; a last line cut short by a crash is not counted, and of several
        answers to one question the last that is not lost to infrastructure counts.

        Raises:
            RecordError: a whole line that is not a sample of (task, arm), by number.
        """
        return _settled(self.stream_samples(task, arm))

    def stream_samples(self, task: str, arm: str) -> Iterator[Sample]:
        """As `read_samples`, one at a time and every answer to a question."""
        name = self.samples_path(task, arm).relative_to(self.path).as_posix()
        where = f"{self.path.name}/{name}"
        for number, line in enumerate(self.sample_lines(name), start=1):
            yield _sample(line, f"{where} line {number}", task, arm)

    def write_text(self, name: str, text: str) -> None:
        """Replace the file `name` atomically."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replace the file `name` atomically."""
        path = self.path / name
        with writing(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)

    def read_text(self, name: str) -> str:
        """Read the file `name`."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(
                f"{self.path.name}/{name} cannot be read: {error}.", "Name a run folder that has it."
            ) from error

    def log_path(self, arm: str) -> Path:
        """Where the engine's output under `arm` goes."""
        path = self.path / "logs" / f"{_part(arm)}.log"
        with writing(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file whole: a reader, or a crash, meets the old content or the new. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def run_id(created: datetime, name: str, fingerprint: str) -> str:
    """`20261201T143000Z-<spec name>-<8 hex of the fingerprint>`."""
    return f"{created.astimezone(UTC).strftime(STAMP)}-{name}-{fingerprint[:8]}"


def list_runs(results: Path) -> list[Path]:
    """Folders under `results` (and results/published) that hold a run.json, oldest first."""
    found = [p.parent for pattern in ("*/run.json", "published/*/run.json") for p in results.glob(pattern)]
    return sorted(found, key=lambda path: path.name)


def find_run(results: Path, reference: str) -> RunFolder:
    """A run by path, by id, by a prefix of its id that fits only one, or `latest`.

    Raises:
        UnknownName: nothing fits, or more than one does.
    """
    direct = Path(reference)
    with suppress(OSError, ValueError):  # what cannot be a path may still be an id
        if (direct / "run.json").is_file():
            return RunFolder(direct)
    runs = list_runs(results)
    if reference == "latest" and runs:
        return RunFolder(runs[-1])
    fitting = [path for path in runs if path.name == reference] or [p for p in runs if p.name.startswith(reference)]
    if len(fitting) != 1:
        raise UnknownName("run", reference, [path.name for path in fitting or runs])
    return RunFolder(fitting[0])


def _part(name: str) -> str:
    """`name` as one path component; names come from specs and files that somebody else wrote."""
    if not SAFE_PART.fullmatch(name):
        raise RecordError(f"{name!r} cannot be a file name.", "Use letters, digits, '.', '_', '-' and '#'.")
    return name


def _sample(line: bytes, where: str, task: str, arm: str) -> Sample:
    sample = decode(Sample, line, where)
    if (sample.task, sample.arm) != (task, arm):
        raise RecordError(f"{where} belongs to {sample.task}/{sample.arm}.", "Restore the file.")
    return sample


def _settled(samples: Iterable[Sample]) -> list[Sample]:
    kept: dict[tuple[str, int, int], Sample] = {}
    for sample in samples:
        if sample.key not in kept or sample.cause is not Cause.ERROR:
            kept[sample.key] = sample
    return list(kept.values())


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and line != b"\n":
                yield line[:-1]


def _append_lines(path: Path, lines: list[str]) -> None:
    with path.open("ab+") as file:
        _drop_partial_line(file)
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())


def _drop_partial_line(file: Any) -> None:
    """Cut what a crash left after the last newline, so that the next line does not grow out of it."""
    end = file.seek(0, os.SEEK_END)
    step = 1 << 16
    position = end
    while position > 0:
        position = max(0, position - step)
        file.seek(position)
        newline = file.read(min(step, end - position)).rfind(b"\n")
        if newline >= 0:
            position += newline + 1
            break
    if position < end:
        file.truncate(position)


def _remove_unfinished(folder: Path) -> None:
    """Remove temporary files of processes that are no more."""
    for path in folder.rglob(".*.tmp"):
        number = path.name.split(".")[-2]
        if number.isdigit() and not Path("/proc", number).exists():
            path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of writing below `path` as a StoreError with its remedy."""
    try:
        yield
    except OSError as error:
        room = "Free space, or choose" if error.errno in NO_ROOM else "Choose"
        raise StoreError(
            f"Cannot write {path}: {error.strerror or error}.", f"{room} another folder with --out."
        ) from error
