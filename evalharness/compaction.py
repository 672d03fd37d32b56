"""Finished runs made small: their samples files become one Parquet file, proved equal before they are removed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evalharness import columnar
from evalharness.errors import StoreError
from evalharness.provenance import sha256_file
from evalharness.store import RunFolder

Step = Callable[[str], None]  # called with what was just done; what a test kills


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of one run: its samples, and their bytes before and after. Equal where nothing was to be done."""

    run_id: str
    samples: int
    before: int
    after: int


def compact(folder: RunFolder, step: Step = lambda _: None) -> Compaction:
    """Pack the samples of a finished run. What a crash leaves at any moment reads the same; again, and it goes on.

    Raises:
        StoreError: the run is being written, is not finished, cannot be written, or would lose something.
        RecordError: a samples file holds what is no sample.
    """
    with folder.locked():
        _refuse_unfinished(folder)
        loose = [name for name in folder.sample_files() if (folder.path / name).exists()]
        before = _size(folder, loose)
        if loose:
            if not _holds(folder, folder.packed, loose):
                _pack(folder, loose, step)
            step("packed")
            for name in loose:
                (folder.path / name).unlink()
                step(f"removed {name}")
        _remove_empty(folder.path / "samples")
        parts = columnar.read_parts(folder.packed)
    return Compaction(folder.path.name, sum(part.rows for part in parts.values()), before, _size(folder, []))


def restore(folder: RunFolder) -> Compaction:
    """Write the samples files again, byte for byte, and remove the Parquet file; safe to repeat after a crash.

    Raises:
        StoreError: the run is being written, cannot be written, or the Parquet file is not what was packed.
        RecordError: the Parquet file cannot be read.
    """
    with folder.locked():
        names = folder.sample_files()
        before = _size(folder, names)
        for name, part in columnar.read_parts(folder.packed).items():
            if not (folder.path / name).exists():
                data = b"".join(line + b"\n" for line in folder.sample_lines(name))
                if hashlib.sha256(data).hexdigest() != part.sha256:
                    raise StoreError(f"{folder.path.name}: {name} is not what was packed.", "Restore the Parquet file.")
                folder.write_bytes(name, data)
        folder.packed.unlink(missing_ok=True)
        samples = sum(1 for name in names for _ in folder.sample_lines(name))
        return Compaction(folder.path.name, samples, before, _size(folder, names))


def _refuse_unfinished(folder: RunFolder) -> None:
    if folder.read_run().finished is None:
        said = f"{folder.path.name} is not finished: its answers may still be added to."
        raise StoreError(said, f"Finish it first: evalharness run --resume {folder.path.name}")


def _size(folder: RunFolder, loose: list[str]) -> int:
    paths = [*(folder.path / name for name in loose), folder.packed]
    return sum(path.stat().st_size for path in paths if path.exists())


def _pack(folder: RunFolder, loose: list[str], step: Step) -> None:
    """Replace the Parquet file by one that holds every samples file, loose and packed."""
    temporary = folder.path / f".{columnar.FILE}.{os.getpid()}.tmp"
    try:
        columnar.write(temporary, {name: partial(folder.sample_lines, name) for name in folder.sample_files()})
        step("written")
        if not _holds(folder, temporary, loose):
            said = f"{folder.path.name} would lose something: a samples file does not come back from its columns."
            raise StoreError(said, "Leave it as it is; an incomplete last line is mended by resuming the run.")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(folder.packed)
        _sync(folder.path)
    except OSError as error:
        raise StoreError(f"Cannot write {folder.packed}: {error.strerror or error}.", "Free space.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make a new name durable before the old files go."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_empty(samples: Path) -> None:
    for path in (*samples.glob("*/"), samples):
        with suppress(OSError):  # something else lies there: it stays
            path.rmdir()


def _holds(folder: RunFolder, packed: Path, loose: list[str]) -> bool:
    """Whether every loose file comes back from the Parquet file byte for byte; read anew, nothing is believed."""
    parts = columnar.read_parts(packed)
    return all(name in parts and _sha256(packed, name) == sha256_file(folder.path / name) for name in loose)


def _sha256(packed: Path, name: str) -> str:
    digest = hashlib.sha256()
    for line in columnar.read_lines(packed, name):
        digest.update(line + b"\n")
    return digest.hexdigest()
