"""Every error a user can meet; each says what is wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class EvalHarnessError(Exception):
    """Base of all expected failures.

    `message` is one sentence on what is wrong, `remedy` one on what to do; `exit_code` is what the
    command line returns (2 usage, 5 infrastructure; verdicts have codes of their own).
    """

    exit_code = 5

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(EvalHarnessError):
    """The request itself cannot be served as written."""

    exit_code = 2


class UnknownName(UsageError):
    """A name outside a closed list; the message offers the nearest choice."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        known = sorted(choices)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        remedy = f"Did you mean: {near[0]}?" if near else f"Choose from: {', '.join(known) or 'nothing (none exist)'}."
        super().__init__(f"Unknown {kind} {name!r}.", remedy)
        self.choices = known


class SpecError(UsageError):
    """A run spec, profile or setting that does not hold together."""


class DataError(UsageError):
    """Evaluation data that is missing, or is not the data its hash names."""


class RecordError(EvalHarnessError):
    """A stored record that cannot be read: corrupt, of a newer schema, or of another run."""


class StoreError(EvalHarnessError):
    """The results folder cannot be written or is in use."""


class EngineError(EvalHarnessError):
    """The engine cannot start, or stopped serving."""


class EvidenceError(EvalHarnessError):
    """An arm that did not run the path it names."""


class PairingError(EvalHarnessError):
    """Two arms that did not answer the same questions."""


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Key of the first value that a model refused (`tasks.0.limit`; "" for the whole), and what is wrong with it."""
    first = error.errors()[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
