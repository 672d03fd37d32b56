"""The answers of a compacted run: columns for the statistics at once, Sample objects only for who shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from evalharness import columnar
from evalharness.errors import PairingError
from evalharness.records import SCHEMA_VERSION, Cause, Sample
from evalharness.store import RunFolder
from evalharness.table import CAUSES, DEGENERATE_CAUSES, DEGENERATE_FLAGS, STRIDE, SampleTable, Tokens, digest

PRESENT: Final = ("doc_id", "repeat", "doc_hash", "prompt_hash", "cause", "finish_reason", "output_tokens", "seconds",
                  "response", "token_ids", "flags", "scores")  # fmt: skip
READ: Final = ("task", "arm", "schema_version", columnar.RAW, *PRESENT)
CAUSE_NAMES: Final = [cause.value for cause in CAUSES]


class PackedAnswers(Sequence[Sample]):
    """Samples of one (task, arm) of a compacted run, in the order written; read as objects when first looked at."""

    def __init__(self, folder: RunFolder, task: str, arm: str) -> None:
        self.folder, self.task, self.arm = folder, task, arm
        self.table = read_table(folder, task, arm)

    @cached_property
    def _samples(self) -> list[Sample]:
        return self.folder.read_samples(self.task, self.arm)

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        return self._samples[index]


def read_answers(folder: RunFolder, task: str, arm: str) -> Sequence[Sample]:
    """Stored answers of (task, arm), of a compacted run with their columns; raises RecordError."""
    return PackedAnswers(folder, task, arm) if folder.packed.exists() else folder.read_samples(task, arm)


def as_table(samples: Sequence[Sample] | SampleTable) -> SampleTable:
    """Answers as columns; raises PairingError when a question is answered twice."""
    if isinstance(samples, PackedAnswers):
        return samples.table
    return samples if isinstance(samples, SampleTable) else SampleTable.from_samples(samples)


def read_table(folder: RunFolder, task: str, arm: str) -> SampleTable:
    """The answers of (task, arm) as columns, without a Sample where they are packed; raises RecordError.

    Columns count only where they are the whole truth: no line kept beside them, nothing missing, nothing lost or
    answered again. Otherwise the lines are read.
    """
    name = folder.samples_path(task, arm).relative_to(folder.path).as_posix()
    if not (folder.path / name).exists() and name in columnar.read_parts(folder.packed):
        rows = columnar.read_columns(folder.packed, name, READ)
        if _is_plain(rows, task, arm):
            try:
                return _table(rows)
            except PairingError:  # a question asked again: which answer counts is the store's to say
                pass
    return SampleTable.from_samples(folder.read_samples(task, arm))


def _is_plain(rows: Any, task: str, arm: str) -> bool:
    if rows[columnar.RAW].null_count < len(rows) or any(_has_gaps(rows[name]) for name in PRESENT):
        return False
    causes, versions = set(rows["cause"].unique().to_pylist()), rows["schema_version"].unique().to_pylist()
    return (
        rows["task"].unique().to_pylist() in ([], [task])
        and rows["arm"].unique().to_pylist() in ([], [arm])
        and causes <= {*CAUSE_NAMES} - {Cause.ERROR.value}
        and all(version is not None and version <= SCHEMA_VERSION for version in versions)
    )


def _has_gaps(column: Any) -> bool:
    inner = (getattr(chunk, "items", getattr(chunk, "values", None)) for chunk in column.chunks)
    return bool(column.null_count or any(values is not None and values.null_count for values in inner))


def _table(rows: Any) -> SampleTable:
    cause = rows["cause"].to_pylist()
    flags = columnar.nested(rows["flags"])
    return SampleTable.from_columns(
        doc_id=rows["doc_id"].to_numpy(),
        repeat=rows["repeat"].to_numpy(),
        doc_hash=_bytes(rows["doc_hash"]),
        prompt=digest(_bytes(rows["prompt_hash"])),
        scores=_scores(list(columnar.nested(rows["scores"]))),
        cause=np.fromiter(map(CAUSE_NAMES.index, cause), np.int8, len(cause)),
        capped=np.array([reason == "length" for reason in rows["finish_reason"].to_pylist()], np.bool_),
        degenerate=np.array(
            [c in DEGENERATE_CAUSES or not DEGENERATE_FLAGS.isdisjoint(f) for c, f in zip(cause, flags, strict=True)],
            np.bool_,
        ),
        output_tokens=rows["output_tokens"].to_numpy(),
        seconds=rows["seconds"].to_numpy(),
        text=np.array([hash(text) & 0xFFFFFFFFFFFFFFFF for text in rows["response"].to_pylist()], np.uint64),
        tokens=_tokens(rows["token_ids"]),
    )


def _bytes(column: Any) -> npt.NDArray[np.bytes_]:
    encoded = [text.encode() for text in column.to_pylist()]
    return np.array(encoded, dtype=f"S{max(map(len, encoded), default=1) or 1}")


def _scores(rows: list[dict[str, float]]) -> dict[str, npt.NDArray[np.float64]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows], np.float64) for name in names}


def _tokens(column: Any) -> Tokens:
    import pyarrow as pa

    rows = pa.concat_arrays(column.chunks)
    offsets = rows.offsets.to_numpy().astype(np.int64)
    ids = rows.values.to_numpy()[offsets[0] : offsets[-1]]
    flat = np.concatenate([ids, np.zeros(STRIDE, np.int32)])
    return Tokens(flat, offsets[:-1] - offsets[0], np.diff(offsets))
