"""Lines that a supervised engine and its parent exchange: a word, a space, one line of JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from evalharness import errors
from evalharness.engines.logtail import advice
from evalharness.spec import ArmSpec
from evalharness.store import decode, encode

Record = TypeVar("Record")
SEE_LOG = "See what it printed"


@dataclass(frozen=True, slots=True)
class Following:
    """What comes after a `generate`, unless it fails: the evidence, then `arm`, whose lines go to log number `log`."""

    arm: ArmSpec
    log: int


def line(word: str, value: object) -> str:
    """`word` and `value` (a record, a spec part, plain JSON or None) as one line."""
    if value is None:
        return f"{word}\n"
    body = value.model_dump_json() if isinstance(value, BaseModel) else encode(value)
    return f"{word} {body}\n"


def record(kind: type[Record], body: str) -> Record:
    """The record of `kind` in a line's body; raises RecordError."""
    return decode(kind, body, f"the engine's {kind.__name__}")


def failure(error: BaseException) -> dict[str, str]:
    """An exception as plain JSON. A foreign one becomes an EngineError with the advice that fits it."""
    if isinstance(error, errors.EvalHarnessError):
        return {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return {
        "kind": "EngineError",
        "message": f"The engine failed: {said[:1000].rstrip('.')}.",
        "remedy": advice(said, SEE_LOG),
    }


def revived(body: str, log: Path | None) -> errors.EvalHarnessError:
    """The exception that `failure` described; `log` is where to look when nothing better is known."""
    told = json.loads(body)
    kind = getattr(errors, told["kind"], errors.EngineError)
    if not (isinstance(kind, type) and issubclass(kind, errors.EvalHarnessError)) or kind is errors.UnknownName:
        kind = errors.UsageError if told["kind"] == "UnknownName" else errors.EngineError
    remedy = f"{SEE_LOG} in {log}." if told["remedy"] == SEE_LOG else told["remedy"]
    return kind(told["message"], remedy)
