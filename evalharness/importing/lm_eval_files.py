"""Finds and reads what `lm_eval --output_path DIR --log_samples` wrote. Nothing in it is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.errors import DataError

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?")
LARGEST_LINE = 64 << 20
NAMED = 8


@dataclass(frozen=True, slots=True)
class Results:
    """One results file. `stamp` is the time in its name, which its samples files share; empty if it was renamed."""

    path: Path
    stamp: str
    content: Mapping[str, Any]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks it has results of."""
        return tuple(name for name in _mapping(self.content.get("results")) if isinstance(name, str))

    def text(self, key: str) -> str | None:
        """A setting of the run as text; None where lm-eval did not record it."""
        value = self.content.get(key)
        return str(value) if isinstance(value, str | int | float) and value != "" else None

    def expected(self, task: str) -> int | None:
        """How many documents the task should have samples of."""
        counts = _mapping(_mapping(self.content.get("n-samples")).get(task))
        count = counts.get("effective")
        return count if type(count) is int and count >= 0 else None

    def samples_file(self, task: str) -> Path | None:
        """The task's samples file beside it.

        Raises:
            DataError: the results file has no time in its name, and several samples files fit.
        """
        # Names are compared, never joined to a path: a task's name is somebody else's.
        fitting = [path for path in sorted(self.path.parent.iterdir()) if self._holds(path, task)]
        if len(fitting) > 1:
            raise DataError(
                f"{len(fitting)} samples files fit task {task} of {self.path.name}.",
                "Keep the time stamp in the name of the results file, or keep one samples file.",
            )
        return fitting[0] if fitting else None

    def _holds(self, path: Path, task: str) -> bool:
        if self.stamp:
            return path.name == f"samples_{task}_{self.stamp}.jsonl"
        rest = path.name.removeprefix(f"samples_{task}").removesuffix(".jsonl")
        return path.name == f"samples_{task}{rest}.jsonl" and (rest == "" or STAMP.fullmatch(rest[1:]) is not None)


def find_results(path: Path) -> Results:
    """The results file at `path`, or the only one in the tree below it.

    Raises:
        DataError: there is none, there are several, or it is not lm-eval's.
    """
    if path.is_file():
        return _read(path)
    if not path.is_dir():
        raise DataError(f"{path} is not there.", "Give lm-eval's output folder or its results file.")
    found = sorted(p for p in path.rglob("*.json") if p.is_file() and _is_results(p.name))
    if not found:
        raise DataError(f"There is no results file of lm-eval in {path}.", "Give the folder named by --output_path.")
    if len(found) > 1:
        names = ", ".join(str(p.relative_to(path)) for p in found[:NAMED])
        raise DataError(f"{path} holds {len(found)} results files: {names}.", "Name the file of the run you mean.")
    return _read(found[0])


def sample_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line number, object) of a samples file; None for a last line that was cut.

    Raises:
        DataError: another line is not a JSON object, or the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LARGEST_LINE), b""), start=1):
                if line.strip():
                    yield number, _object(line, number, path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.", "Make it readable.") from error


def _object(line: bytes, number: int, path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            return None
        raise DataError(f"{path.name} line {number} is not JSON.", "Restore the file.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path.name} line {number} is not a JSON object.", "Restore the file.")
    return found


def _is_results(name: str) -> bool:
    """Whether a file's name is one lm-eval gives: results_TIME.json, or STEM_TIME.json where one was asked for."""
    stem = name.removesuffix(".json")
    return stem == "results" or (STAMP.search(stem) is not None and not name.startswith("samples_"))


def _read(path: Path) -> Results:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file that can be read.", "Give lm-eval's results file.") from error
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        raise DataError(f"{path} is not a results file of lm-eval.", "Give the one it wrote beside its samples files.")
    stamp = STAMP.search(path.stem)
    return Results(path, stamp.group() if stamp else "", content)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
