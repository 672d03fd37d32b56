"""A run's answers as one Parquet file: every line of its samples files by column, and back again byte for byte.

A line is JSON, and written by this package it follows from its columns alone. One that does not (another spacing, a
field nobody knows) is kept beside them as it stood, so that no file is refused for its looks. The codec knows neither
Sample nor pydantic: what it wrote is what it reads, whatever later versions add to a sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from evalharness.errors import RecordError

FILE: Final = "samples.parquet"  # in the run's folder, instead of samples/
FORMAT: Final = 1
RAW: Final = "line"  # the line itself, where its columns do not give it back
KEY: Final = b"evalharness"
# Lines of one row group: the arms of a task together, so that what they answer alike is there once.
ROWS: Final = 16_384
STORED: Final = {"compression": "zstd", "compression_level": 3, "write_page_checksum": True}
# Sample's fields in the order of its JSON, with Arrow's names of their types.
FIELDS: Final = {
    "task": "string",
    "arm": "string",
    "doc_id": "int64",
    "doc_hash": "string",
    "repeat": "int64",
    "seed": "int64",
    "prompt_hash": "string",
    "response": "string",
    "token_ids": ["int32"],
    "finish_reason": "string",
    "prompt_tokens": "int64",
    "output_tokens": "int64",
    "seconds": "float64",
    "target": "string",
    "scores": {"string": "float64"},
    "cause": "string",
    "extracted": {"string": "string"},
    "flags": ["string"],
    "reasoning": "string",
    "error": "string",
    "schema_version": "int64",
}
ALWAYS: Final = frozenset(FIELDS) - {"error"}  # a line without one of these is kept: its columns are no sample
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Lines = Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Part:
    """One samples file inside the Parquet file: its path in the run, and `rows` lines from row `first` on. `sha256`
    and `bytes` are those of the file as it was."""

    name: str
    first: int
    rows: int
    bytes: int
    sha256: str


def write(target: Path, sources: Mapping[str, Callable[[], Lines]]) -> None:
    """Write the lines of `sources` (path inside the run -> its lines, read twice) into the new file `target`.

    Raises:
        RecordError: a line is no sample, by number.
        OSError: the file cannot be written.
    """
    import pyarrow.parquet as pq

    measured = _measured(sources)
    note = {"format": FORMAT, "parts": [asdict(part) for part in measured]}
    schema = _schema().with_metadata({KEY: json.dumps(note).encode()})
    with pq.ParquetWriter(target, schema, **STORED) as writer:
        for _, parts in _by_folder(measured):
            numbered = ((p.name, n, line) for p in parts for n, line in enumerate(sources[p.name](), start=1))
            while batch := list(islice(numbered, ROWS)):
                writer.write_table(_table(batch, schema))


def read_parts(path: Path) -> dict[str, Part]:
    """What the file holds, by path inside the run; nothing where there is no file. Raises RecordError."""
    if not path.exists():
        return {}
    with _opened(path) as file:
        return _parts(file, path)


def read_lines(path: Path, name: str) -> Iterator[bytes]:
    """The lines of one samples file as they were, without their newlines. Raises RecordError."""
    with _reading(path):
        for table in _tables(path, name, None):
            yield from _lines(table)


def read_columns(path: Path, name: str, columns: tuple[str, ...]) -> Any:
    """The chosen `columns` of one samples file as an Arrow table (rows,); raises RecordError."""
    import pyarrow as pa

    empty = pa.schema([_schema().field(column) for column in columns]).empty_table()
    with _reading(path):
        return pa.concat_tables([empty, *(table.select(columns) for table in _tables(path, name, columns))])


def nested(column: Any) -> Iterator[Any]:
    """The rows of an Arrow list or map column as lists and dicts, None where there is none."""
    import pyarrow as pa

    for chunk in column.chunks:
        offsets, valid = chunk.offsets.to_pylist(), chunk.is_valid().to_pylist()
        first, count = offsets[0], offsets[-1] - offsets[0]
        if pa.types.is_map(chunk.type):
            keys, items = (side.slice(first, count).to_pylist() for side in (chunk.keys, chunk.items))
            rows = (
                dict(zip(keys[a - first : b - first], items[a - first : b - first], strict=True))
                for a, b in pairwise(offsets)
            )
        else:
            values = chunk.values.slice(first, count).to_pylist()
            rows = (values[a - first : b - first] for a, b in pairwise(offsets))
        yield from (row if is_there else None for row, is_there in zip(rows, valid, strict=True))


# --- writing ------------------------------------------------------------------------------------------------


def _measured(sources: Mapping[str, Callable[[], Lines]]) -> list[Part]:
    parts, first = [], 0
    for name in sorted(sources):
        digest, rows, size = hashlib.sha256(), 0, 0
        for line in sources[name]():
            digest.update(line + b"\n")
            rows, size = rows + 1, size + len(line) + 1
        parts.append(Part(name, first, rows, size, digest.hexdigest()))
        first += rows
    return parts


def _by_folder(parts: Iterable[Part]) -> Iterator[tuple[str, list[Part]]]:
    grouped: dict[str, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.name.rpartition("/")[0], []).append(part)
    yield from grouped.items()


@cache
def _schema() -> Any:
    import pyarrow as pa

    def kind(said: Any) -> Any:
        if isinstance(said, list):
            return pa.list_(kind(said[0]))
        if isinstance(said, dict):
            return pa.map_(*(kind(one) for pair in said.items() for one in pair))
        return pa.type_for_alias(said)

    return pa.schema([*((name, kind(said)) for name, said in FIELDS.items()), (RAW, pa.binary())])


def _table(batch: Sequence[tuple[str, int, bytes]], schema: Any) -> Any:
    """Numbered lines as columns; raises RecordError naming the first line that has none."""
    import pyarrow as pa

    rows = [_row(name, number, line) for name, number, line in batch]
    try:
        table = pa.table([_column(rows, field) for field in schema], schema=schema)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError):
        if len(batch) == 1:
            raise _no_sample(*batch[0][:2]) from None
        half = len(batch) // 2
        return pa.concat_tables([_table(batch[:half], schema), _table(batch[half:], schema)])
    has_gaps = any(table[name].null_count for name in ALWAYS)
    lines = zip(rows, _lines(table), batch, strict=True)
    kept = [
        line if made != line or (has_gaps and any(row.get(name) is None for name in ALWAYS)) else None
        for row, made, (_, _, line) in lines
    ]
    return table.set_column(len(FIELDS), schema.field(RAW), pa.array(kept, pa.binary()))


def _row(name: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise _no_sample(name, number)
    return row | {RAW: None}


def _no_sample(name: str, number: int) -> RecordError:
    return RecordError(f"{name} line {number} is no sample.", "Restore the file.")


def _column(rows: Sequence[Mapping[str, Any]], field: Any) -> Any:
    import pyarrow as pa

    values = [row.get(field.name) for row in rows]
    if pa.types.is_map(field.type):
        values = [None if value is None else list(value.items()) for value in values]
    return pa.array(values, field.type)


# --- reading ------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    # read_table would import the whole dataset machinery
    with _reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield file


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What a damaged file raises, and Arrow at what it holds, as a RecordError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        said = " ".join(str(error).split())[:200]
        where = f"{path.parent.name}/{path.name}"
        raise RecordError(f"{where} cannot be read: {said}", "Restore the file.") from error


def _parts(file: Any, path: Path) -> dict[str, Part]:
    note = json.loads((file.schema_arrow.metadata or {}).get(KEY, b"null"))
    where = f"{path.parent.name}/{path.name}"
    if not isinstance(note, dict):
        raise RecordError(f"{where} does not say which samples it holds.", "Restore the file.")
    if note["format"] > FORMAT:
        said = f"{where} has format {note['format']}; this evalharness reads up to {FORMAT}."
        raise RecordError(said, "Update evalharness.")
    return {part["name"]: Part(**part) for part in note["parts"]}


def _tables(path: Path, name: str, columns: tuple[str, ...] | None) -> Iterator[Any]:
    """The rows of one part, a table for each row group that has some."""
    with _opened(path) as file:
        part, start = _parts(file, path)[name], 0
        found = path.stat()
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            low, high = max(part.first, start), min(part.first + part.rows, stop)
            if low < high:
                table = _group(path, (found.st_mtime_ns, found.st_size), group, columns)
                yield table.slice(low - start, high - low)
            start = stop


@lru_cache(maxsize=1)
def _group(path: Path, stamp: tuple[int, int], group: int, columns: tuple[str, ...] | None) -> Any:  # noqa: ARG001
    """One row group of the file that had `stamp`. The last one is kept: the arms of a task lie in one."""
    with _opened(path) as file:
        return file.read_row_group(group, columns=columns, use_threads=False)


def _lines(table: Any) -> Iterator[bytes]:
    names = [name for name in table.column_names if name != RAW]
    columns = [_values(table.column(name)) for name in names]
    for raw, *values in zip(table.column(RAW).to_pylist(), *columns, strict=True):
        yield raw if raw is not None else _encode(dict(zip(names, values, strict=True))).encode()


def _values(column: Any) -> Iterable[Any]:
    import pyarrow as pa

    return nested(column) if pa.types.is_nested(column.type) else column.to_pylist()
