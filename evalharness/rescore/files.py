"""Answers from a JSON Lines file: this project's samples, lm-eval's `samples_*.jsonl`, or any rows with a response."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from evalharness.errors import DataError, RecordError
from evalharness.records import Sample
from evalharness.store import decode

RESPONSES: Final = ("response", "completion", "output", "generated_text", "model_output", "prediction", "text")
TARGETS: Final = ("target", "gold", "expected", "reference", "label", "answer")
QUESTIONS: Final = ("question", "problem", "prompt", "input")
IDS: Final = ("doc_id", "id", "index", "idx")
SCORES: Final = ("exact_match", "score", "correct", "acc")
_LM_EVAL_NAME: Final = re.compile(r"samples_(?P<task>.+)_\d{4}-\d{2}-\d{2}T[\d.-]+\.jsonl")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """One answer as a file has it. `doc` is its document where the row holds one or enough to make one; `before`
    maps a metric to the score in the file; `sample` is the whole record where it is one of ours."""

    doc_id: int
    repeat: int
    text: str
    doc: Mapping[str, Any] | None
    finish_reason: str | None
    before: Mapping[str, float] = field(default_factory=dict)
    sample: Sample | None = None


def read_answers(path: Path, wanted: str | None = None) -> tuple[str, list[StoredAnswer]]:
    """(task, answers) of a file; rows that lm-eval wrote once per filter become one answer.

    Raises:
        DataError: the file cannot be read, names no task, or a row has no response.
        RecordError: a line is not JSON.
    """
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path} holds no answers.", "Name a JSON Lines file with one answer a line.")
    task = wanted or _task_of(path, rows)
    merged: dict[tuple[int, int], StoredAnswer] = {}
    for number, row in enumerate(rows):
        for answer in _answers(path, number, row):
            key = (answer.doc_id, answer.repeat)
            merged[key] = _merged(merged[key], answer) if key in merged and "filter" in row else answer
    if len(merged) < len(rows) and not any("filter" in row for row in rows):
        raise DataError(f"{path} answers a document twice.", "Give each line a doc_id and repeat of its own.")
    return task, list(merged.values())


def _rows(path: Path) -> Iterator[Row]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.", "Name a JSON Lines file.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{path.name} line {number} is not JSON.", "Correct or remove the line.") from error
        if not isinstance(row, dict):
            raise RecordError(f"{path.name} line {number} is not an object.", "Write one JSON object a line.")
        yield _whole(row) if "\\ud" in line.lower() else row


def _whole(row: Row) -> Row:
    """`row` without halves of surrogate pairs, which JSON can spell and no file can hold."""
    whole: Row = json.loads(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
    return whole


def _task_of(path: Path, rows: list[Row]) -> str:
    named = {str(row["task"]) for row in rows if "task" in row}
    found = _LM_EVAL_NAME.fullmatch(path.name)
    if found:
        named.add(found["task"])
    if len(named) != 1:
        raise DataError(f"{path.name} does not say which one task it answers.", "Name it: --task gsm8k.")
    return named.pop()


def _answers(path: Path, number: int, row: Row) -> Iterator[StoredAnswer]:
    if "schema_version" in row and "cause" in row:
        yield _own(path, number, row)
    elif "resps" in row:
        texts = [text for group in row["resps"] for text in (group if isinstance(group, list) else [group])]
        yield from (_foreign(number, row, str(text), repeat) for repeat, text in enumerate(texts))
    else:
        name = next((name for name in RESPONSES if name in row), None)
        if name is None:
            raise DataError(
                f"{path.name} line {number + 1} has no response; it has {', '.join(sorted(row)[:8])}.",
                f"Name the field one of: {', '.join(RESPONSES)}.",
            )
        text = row[name]
        yield _foreign(number, row, "" if text is None else str(text), int(row.get("repeat", 0)))


def _own(path: Path, number: int, row: Row) -> StoredAnswer:
    sample = decode(Sample, json.dumps(row), f"{path.name} line {number + 1}")
    doc = _made_doc({"target": sample.target})
    return StoredAnswer(
        sample.doc_id, sample.repeat, sample.response, doc, sample.finish_reason, dict(sample.scores), sample
    )


def _foreign(number: int, row: Row, text: str, repeat: int) -> StoredAnswer:
    known = next((row[name] for name in IDS if isinstance(row.get(name), int)), number)
    doc = row["doc"] if isinstance(row.get("doc"), dict) else _made_doc(row)
    reason = row.get("finish_reason")
    return StoredAnswer(known, repeat, text, doc, str(reason) if reason else None, dict(_scores(row)))


def _made_doc(row: Row) -> Row | None:
    """A document with what the tasks' templates read of one; None where the row has no target."""
    target = next((row[name] for name in TARGETS if isinstance(row.get(name), str | int | float)), None)
    if target is None:
        return None
    question = next((row[name] for name in QUESTIONS if isinstance(row.get(name), str)), "")
    return {"question": question, "problem": question, "answer": str(target), "solution": str(target)}


def _scores(row: Row) -> Iterator[tuple[str, float]]:
    """What the row says it scored; lm-eval's first filter gives the primary score, each filter one of its own."""
    for name in SCORES:
        value = row.get(name)
        if isinstance(value, int | float) and isfinite(value):
            yield "exact_match", float(value)
            if isinstance(row.get("filter"), str):
                yield row["filter"], float(value)
            return


def _merged(first: StoredAnswer, second: StoredAnswer) -> StoredAnswer:
    return StoredAnswer(
        first.doc_id, first.repeat, first.text, first.doc, first.finish_reason, {**second.before, **first.before}
    )
