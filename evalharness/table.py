"""The answers of one (task, arm) as columns, so that a million of them are compared in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evalharness.errors import PairingError, RecordError
from evalharness.records import Cause, Sample

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
KeyArray = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]

STRIDE: Final = 16  # tokens compared in one step
BATCH: Final = 65_536  # samples held as objects at a time
CAUSES: Final = tuple(Cause)
_CAUSE_INDEX: Final = {cause: index for index, cause in enumerate(CAUSES)}
DEGENERATE_CAUSES: Final = frozenset({Cause.LOOP, Cause.EMPTY})
DEGENERATE_FLAGS: Final = frozenset({"loop", "empty", "alphabet_drift"})
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of n answers: row i is `flat[start[i] : start[i] + length[i]]`; rows may lie in any order.

    `flat` ends in STRIDE spare entries, so that a whole window may be read from any token.
    """

    flat: npt.NDArray[np.int32]
    start: IntArray
    length: IntArray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Tokens:
        """Pack one sequence per answer."""
        length = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.zeros(int(length.sum()) + STRIDE, np.int32)
        flat[:-STRIDE] = np.fromiter(chain.from_iterable(rows), np.int32, int(length.sum()))
        return cls(flat, np.cumsum(length) - length, length)

    @classmethod
    def joined(cls, parts: Sequence[Tokens]) -> Tokens:
        """The rows of `parts` one after the other."""
        offsets = np.cumsum([0, *(len(part.flat) for part in parts[:-1])])
        starts = [part.start + offset for part, offset in zip(parts, offsets, strict=True)]
        flat = np.concatenate([part.flat for part in parts])
        return cls(flat, np.concatenate(starts), np.concatenate([part.length for part in parts]))

    def take(self, order: IntArray) -> Tokens:
        """The rows `order`, without moving a token."""
        return Tokens(self.flat, self.start[order], self.length[order])


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Columns (n,) of one (task, arm), ordered by (doc_id, document, repeat); each question once.

    `question` is a 64-bit digest of (doc_hash, doc_id, repeat), `document` one of (doc_hash, doc_id) and
    `prompt` one of the prompt hash. `scores` holds one column per metric, NaN where a sample lacks it.
    `cause` indexes CAUSES; `capped` marks answers that ended at the token limit, `degenerate` those that
    loop, are empty or drift. `text` is a digest of the response.
    """

    doc_id: IntArray
    repeat: IntArray
    doc_hash: npt.NDArray[np.bytes_]
    document: KeyArray
    question: KeyArray
    prompt: KeyArray
    scores: Mapping[str, FloatArray]
    cause: npt.NDArray[np.int8]
    capped: BoolArray
    degenerate: BoolArray
    output_tokens: IntArray
    seconds: FloatArray
    text: KeyArray
    tokens: Tokens

    def __len__(self) -> int:
        return len(self.doc_id)

    @property
    def starts(self) -> IntArray:
        """First row of each document, (documents,)."""
        return document_starts(self.document)

    @property
    def answered(self) -> BoolArray:
        """Rows that are answers, not infrastructure errors."""
        answered: BoolArray = self.cause != CAUSES.index(Cause.ERROR)
        return answered

    def take(self, order: IntArray) -> SampleTable:
        """The rows `order`."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {name: column[order] for name, column in columns.items() if isinstance(column, np.ndarray)}
        scores = {metric: column[order] for metric, column in self.scores.items()}
        return SampleTable(**taken, scores=scores, tokens=self.tokens.take(order))

    @classmethod
    def from_samples(cls, samples: Iterable[Sample]) -> SampleTable:
        """Columns of `samples`, in any order; a generator is consumed BATCH samples at a time.

        Raises:
            PairingError: a question is answered twice.
            RecordError: a number is larger than any count or token id.
        """
        source = iter(samples)
        try:
            parts = [_columns(list(islice(source, BATCH)))]
            while batch := list(islice(source, BATCH)):
                parts.append(_columns(batch))
        except OverflowError as error:
            raise RecordError(f"A sample holds an impossible number: {error}.", "Restore the samples file.") from error
        return cls.from_columns(**_joined(parts))

    @classmethod
    def from_columns(
        cls,
        *,
        doc_id: IntArray,
        repeat: IntArray,
        doc_hash: npt.NDArray[np.bytes_],
        scores: Mapping[str, FloatArray],
        tokens: Tokens,
        **columns: npt.NDArray[np.generic],
    ) -> SampleTable:
        """Put columns in order and refuse a question that is answered twice."""
        document = mix(digest(doc_hash), doc_id)
        question = mix(document, repeat)
        table = cls(
            doc_id=doc_id,
            repeat=repeat,
            doc_hash=doc_hash,
            document=document,
            question=question,
            scores=scores,
            tokens=tokens,
            **columns,  # type: ignore[arg-type]
        )
        ordered = table if _in_order(table) else table.take(np.lexsort((repeat, document, doc_id)))
        _refuse_doubles(ordered)
        return ordered


def document_starts(document: KeyArray) -> IntArray:
    """First row of each run of equal document digests."""
    return np.flatnonzero(np.concatenate(([True], document[1:] != document[:-1]))[: len(document)])


def _refuse_doubles(table: SampleTable) -> None:
    same = (table.question[1:] == table.question[:-1]).nonzero()[0]
    if len(same):
        row = int(same[0])
        raise PairingError(
            f"Document {table.doc_id[row]}, repeat {table.repeat[row]} is answered twice by one arm.",
            "Keep one line of each question in the samples file.",
        )


def digest(strings: npt.NDArray[np.bytes_]) -> KeyArray:
    """64-bit digest of each byte string, (n,); the same on every machine."""
    width = max(-(-strings.dtype.itemsize // 8) * 8, 8)
    words = np.ascontiguousarray(strings.astype(f"S{width}")).view("<u8").reshape(len(strings), width // 8)
    key = np.zeros(len(strings), np.uint64)
    for column in words.T:
        key = np.where(column == 0, key, mix(key, column))  # padding, which differs from array to array
    return key


def mix(key: KeyArray, value: IntArray | KeyArray) -> KeyArray:
    """Fold `value` into `key` (multiply, xor and shift, as in splitmix64)."""
    mixed: KeyArray = (key + value.astype(np.uint64) + _GOLDEN) * _MIX
    mixed ^= mixed >> np.uint64(31)
    return mixed * _GOLDEN


def _bytes(strings: Iterable[str]) -> npt.NDArray[np.bytes_]:
    encoded = [text.encode() for text in strings]
    return np.array(encoded, dtype=f"S{max(map(len, encoded), default=1) or 1}")


def _ints(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int64)


def _columns(rows: Sequence[Sample]) -> dict[str, Any]:
    """The arguments of `SampleTable.from_columns`."""
    names = dict.fromkeys(chain.from_iterable(s.scores for s in rows))
    return {
        "doc_id": _ints(s.doc_id for s in rows),
        "repeat": _ints(s.repeat for s in rows),
        "doc_hash": _bytes(s.doc_hash for s in rows),
        "prompt": digest(_bytes(s.prompt_hash for s in rows)),
        "scores": {name: np.array([s.scores.get(name, np.nan) for s in rows], np.float64) for name in names},
        "cause": np.fromiter((_CAUSE_INDEX[s.cause] for s in rows), np.int8),
        "capped": np.array([s.finish_reason == "length" for s in rows], np.bool_),
        "degenerate": np.array([_is_degenerate(s) for s in rows], np.bool_),
        "output_tokens": _ints(s.output_tokens for s in rows),
        "seconds": np.array([s.seconds for s in rows], np.float64),
        "text": np.array([hash(s.response) & 0xFFFFFFFFFFFFFFFF for s in rows], np.uint64),
        "tokens": Tokens.of([s.token_ids for s in rows]),
    }


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The columns of `parts` one after the other; a score that a part lacks is NaN there."""
    if len(parts) == 1:
        return parts[0]
    plain = [name for name in parts[0] if name not in {"scores", "tokens"}]
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in plain}
    names = dict.fromkeys(chain.from_iterable(part["scores"] for part in parts))
    blank = [np.full(len(part["doc_id"]), np.nan) for part in parts]
    joined["scores"] = {
        name: np.concatenate([part["scores"].get(name, empty) for part, empty in zip(parts, blank, strict=True)])
        for name in names
    }
    joined["tokens"] = Tokens.joined([part["tokens"] for part in parts])
    return joined


def _is_degenerate(sample: Sample) -> bool:
    return sample.cause in DEGENERATE_CAUSES or not DEGENERATE_FLAGS.isdisjoint(sample.flags)


def _in_order(table: SampleTable) -> bool:
    step, repeat = np.diff(table.doc_id), np.diff(table.repeat)
    same_document = table.document[1:] == table.document[:-1]
    return bool(((step > 0) | (same_document & (repeat > 0))).all())
