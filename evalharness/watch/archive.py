"""Questions over many nights, each a results folder of its own, answered from their indexes: no run is opened.

One folder grows with every run it ever held, and so does the time to look through it. A night's folder is finished in
the morning; its index (history.py) then stands as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evalharness.errors import RecordError, UsageError
from evalharness.watch.history import FORMAT, INDEX

RUN: Final = ("run_id", "folder", "profile", "created", "engine", "model", "version", "commit", "verdict", "state",
              "problem")  # fmt: skip
SCORE: Final = ("task", "arm", "task_verdict", "metric", "n", "value", "low", "high", "output_tokens", "degenerate",
                "truncated", "tokens_per_second", "noise_floor")  # fmt: skip
BAD: Final = frozenset({"FAIL", "INVALID", "ERROR"})
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; an empty word asks for all. `is_bad`: only what somebody has to look at."""

    model: str = ""
    task: str = ""
    arm: str = ""
    is_bad: bool = False

    def takes(self, row: Row) -> bool:
        """Whether a flat row of a history is asked for."""
        if self.model not in {"", row["model"]}:
            return False
        if "task" not in row:  # a run without figures
            return self.is_bad or not (self.task or self.arm)
        if self.is_bad and row["task_verdict"] not in BAD:
            return False
        return self.task in {"", row["task"]} and self.arm in {"", row["arm"]}


def night_folders(archive: Path, newest: int) -> list[Path]:
    """The `newest` results folders under `archive` that have an index, by name, oldest first.

    Raises:
        UsageError: there is none.
    """
    found = sorted(path.parent for path in archive.glob(f"*/{INDEX}"))
    if not found:
        raise UsageError(
            f"{archive} holds no results folder with an index.",
            "Give a folder of results folders; `evalharness history --out FOLDER` writes the index of one.",
        )
    return found[-newest:]


def archived_rows(night: Path, wanted: Wanted) -> Iterator[Row]:
    """Flat rows of one night, one a (run, task, arm) and one a run without figures; raises RecordError."""
    runs, figures, owner = _read(night / INDEX)
    is_model = _matching(wanted.model, runs["model"])
    chosen = is_model[owner] & _matching(wanted.task, figures["task"]) & _matching(wanted.arm, figures["arm"])
    common = [_common(run) for run in runs.to_pylist()]
    found = figures.filter(chosen).to_pylist()
    rows = (common[at] | figure for at, figure in zip(owner[chosen], found, strict=True))
    is_empty = is_model.copy()
    is_empty[owner] = False
    empty = (common[at] for at in is_empty.nonzero()[0])
    yield from sorted(filter(wanted.takes, (*rows, *empty)), key=lambda row: str(row["created"]))


def _common(run: Row) -> Row:
    folder = run.pop("folder")
    return run | {"run_id": run["run_id"] or folder, "commit": run["commit"][:12]}


def _matching(word: str, column: Any) -> npt.NDArray[np.bool_]:
    """Which rows of an Arrow column (n,) hold `word`; all of them for an empty one."""
    return np.array([value == word for value in column.to_pylist()] if word else [True] * len(column), np.bool_)


def _read(index: Path) -> tuple[Any, Any, npt.NDArray[np.int64]]:
    """Arrow tables of the runs and of their figures, and the run of each figure, (figures,)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [*RUN, *(f"scores.list.element.{name}" for name in SCORE)]
    where = f"{index.parent.name}/{index.name}"
    try:
        with pq.ParquetFile(index) as file:
            if (file.schema_arrow.metadata or {}).get(b"evalharness") != FORMAT:
                raise RecordError(f"{where} was written by another version.", f"Remake it: {_remake(index)}")
            table = file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{where} cannot be read: {error}", f"Delete it and remake it: {_remake(index)}") from error
    lists = table["scores"].combine_chunks()
    figures = lists.flatten()
    owner = np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0).to_numpy())
    return table.select(RUN), pa.table({name: figures.field(name) for name in SCORE}), owner


def _remake(index: Path) -> str:
    return f"evalharness history --out {index.parent}"
