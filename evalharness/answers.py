"""Stored answers: columns for the statistics at once, Sample objects only for who shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from evalharness import columnar
from evalharness.errors import PairingError
from evalharness.records import SCHEMA_VERSION, Cause, Sample
from evalharness.store import RunFolder
from evalharness.table import CAUSES, DEGENERATE_CAUSES, DEGENERATE_FLAGS, STRIDE, SampleTable, Tokens, digest

# What a table is made of, null in no row; the rest of READ tells whether the columns may be believed.
PRESENT: Final = ("doc_id", "repeat", "doc_hash", "prompt_hash", "cause", "finish_reason", "output_tokens", "seconds",
                  "response", "token_ids", "flags", "scores")  # fmt: skip
READ: Final = ("task", "arm", "schema_version", columnar.RAW, *PRESENT)
CAUSE_NAMES: Final = [cause.value for cause in CAUSES]
ANSWERED: Final = frozenset(CAUSE_NAMES) - {Cause.ERROR.value}


class StoredAnswers(Sequence[Sample]):
    """Samples of one (task, arm), packed or not, in the order written; kept as columns, read as objects when first
    looked at. Raises RecordError."""

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


def as_table(samples: Sequence[Sample] | SampleTable) -> SampleTable:
    """Answers as columns; raises PairingError when a question is answered twice."""
    if isinstance(samples, StoredAnswers):
        return samples.table
    return samples if isinstance(samples, SampleTable) else SampleTable.from_samples(samples)


def read_table(folder: RunFolder, task: str, arm: str) -> SampleTable:
    """The answers of (task, arm) as columns, without a Sample where they are packed; raises RecordError.

    Packed columns count only where they are the whole truth: no line kept beside them, nothing missing, nothing lost or
    answered again. Otherwise the lines are read, a batch at a time.
    """
    name = folder.samples_path(task, arm).relative_to(folder.path).as_posix()
    if not (folder.path / name).exists() and name in columnar.read_parts(folder.packed):
        rows = columnar.read_columns(folder.packed, name, READ)
        if _is_plain(rows, task, arm):
            with suppress(PairingError):  # as below
                return _table(rows)
    try:
        return SampleTable.from_samples(folder.stream_samples(task, arm))
    except PairingError:  # a question asked again: which answer counts is the store's to say
        return SampleTable.from_samples(folder.read_samples(task, arm))


def _is_plain(rows: Any, task: str, arm: str) -> bool:
    if rows[columnar.RAW].null_count < len(rows) or any(_has_gaps(rows[name]) for name in PRESENT):
        return False
    told = {name: set(rows[name].unique().to_pylist()) for name in ("task", "arm", "cause", "schema_version")}
    return (
        told["task"] <= {task}
        and told["arm"] <= {arm}
        and told["cause"] <= ANSWERED
        and all(version is not None and version <= SCHEMA_VERSION for version in told["schema_version"])
    )


def _has_gaps(column: Any) -> bool:
    inner = (getattr(chunk, "items", getattr(chunk, "values", None)) for chunk in column.chunks)
    return bool(column.null_count or any(values is not None and values.null_count for values in inner))


def _table(rows: Any) -> SampleTable:
    import pyarrow as pa

    columns = {name: pa.concat_arrays(rows[name].chunks) for name in PRESENT}
    causes = columns["cause"].to_pylist()
    is_bad = np.fromiter((cause in DEGENERATE_CAUSES for cause in causes), np.bool_, len(causes))
    return SampleTable.from_columns(
        doc_id=columns["doc_id"].to_numpy(),
        repeat=columns["repeat"].to_numpy(),
        doc_hash=_bytes(columns["doc_hash"]),
        prompt=digest(_bytes(columns["prompt_hash"])),
        scores=_scores(columns["scores"]),
        cause=np.fromiter(map(CAUSE_NAMES.index, causes), np.int8, len(causes)),
        capped=np.array([reason == "length" for reason in columns["finish_reason"].to_pylist()], np.bool_),
        degenerate=is_bad | _is_flagged(columns["flags"]),
        output_tokens=columns["output_tokens"].to_numpy(),
        seconds=columns["seconds"].to_numpy(),
        text=np.array([hash(text) & 0xFFFFFFFFFFFFFFFF for text in columns["response"].to_pylist()], np.uint64),
        tokens=_tokens(columns["token_ids"]),
    )


def _bytes(column: Any) -> npt.NDArray[np.bytes_]:
    encoded = [text.encode() for text in column.to_pylist()]
    return np.array(encoded, dtype=f"S{max(map(len, encoded), default=1) or 1}")


def _owners(column: Any) -> tuple[npt.NDArray[np.int64], slice]:
    """Of a list column (n,): the row of each inner value, and where among the inner values they lie."""
    offsets = column.offsets.to_numpy()
    return np.repeat(np.arange(len(column)), np.diff(offsets)), slice(int(offsets[0]), int(offsets[-1]))


def _scores(column: Any) -> dict[str, npt.NDArray[np.float64]]:
    rows, inner = _owners(column)
    metrics = np.array(column.keys.to_pylist()[inner], dtype=object)
    values = column.items.to_numpy()[inner]
    found = {}
    for metric in dict.fromkeys(metrics):
        found[metric] = np.full(len(column), np.nan)
        found[metric][rows[metrics == metric]] = values[metrics == metric]
    return found


def _is_flagged(column: Any) -> npt.NDArray[np.bool_]:
    rows, inner = _owners(column)
    flags = column.values.to_pylist()[inner]
    flagged = np.zeros(len(column), np.bool_)
    flagged[rows[[flag in DEGENERATE_FLAGS for flag in flags]]] = True
    return flagged


def _tokens(column: Any) -> Tokens:
    _, inner = _owners(column)
    flat = np.concatenate([column.values.to_numpy()[inner], np.zeros(STRIDE, np.int32)])
    offsets = column.offsets.to_numpy().astype(np.int64) - inner.start
    return Tokens(flat, offsets[:-1], np.diff(offsets))
