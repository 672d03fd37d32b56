"""The index over many runs: one entry a run folder, kept as Parquet so that an unchanged folder is read once.

results/ stays the only truth: the file may be deleted at any time, and DuckDB or pandas read it as it is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from evalharness.errors import EvalHarnessError
from evalharness.records import ArmScore, Comparison, Run, TaskComparison
from evalharness.store import RunFolder, decode, replace_file
from evalharness.watch.marks import read_marks

INDEX: Final = ".history.parquet"
# What is watched for change, and what a site shows of a run.
RECORDS: Final = ("run.json", "comparison.json")
DOCUMENTS: Final = ("signoff.html", "signoff.pdf", "signoff.json", "report.html", "comparison.csv", "comparison.md")
STOPPED: Final = ".stopped"  # in the folder of a run whose process is known to be gone: why
MOST: Final = 1 << 48
YEARS: Final = range(2020, 2100)
PAIRED_RUNS: Final = 20  # newest runs of a series whose answers are indexed, for paired tests between nights


@dataclass(frozen=True, slots=True)
class Score:
    """One arm on one task. `questions` is the hash of what was asked: only equal ones compare. `marks` holds one
    character a question (see marks.py), None where the answers were not indexed. `degenerate` and `truncated`
    are shares of n; `noise_floor` is None where no A/A pair ran."""

    task: str
    metric: str
    repeats: int
    documents: int
    questions: str
    task_verdict: str
    arm: str
    capture: str
    n: int
    asked: int
    errors: int
    value: float | None
    low: float | None
    high: float | None
    output_tokens: float | None
    length_ratio: float | None
    degenerate: float | None
    truncated: float | None
    tokens_per_second: float | None
    noise_floor: float | None
    marks: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder under results/. `state` is `compared`, `uncompared` (a run without a comparison: not finished, or
    not compared), or `unreadable`; `problem` says why, also of a run that was stopped. Times are UTC ISO 8601."""

    folder: str
    signature: str
    state: str
    problem: str = ""
    published: bool = False
    run_id: str = ""
    profile: str = ""
    created: str = ""
    finished: str | None = None
    engine: str = ""
    model: str = ""
    version: str = ""
    commit: str = ""
    is_dirty: bool = False
    lm_eval: str = ""
    gpu: str = ""
    seconds: float | None = None
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()

    @property
    def at(self) -> datetime:
        """When the run began."""
        return datetime.fromisoformat(self.created)

    @property
    def series(self) -> tuple[str, str, str]:
        """What makes two runs nights of one series."""
        return (self.profile, self.engine, self.model)

    def of(self, task: str) -> list[Score]:
        """The scores of `task`."""
        return [score for score in self.scores if score.task == task]


# An index of other fields is not read.
FORMAT: Final = " ".join(field.name for kind in (Entry, Score) for field in fields(kind)).encode()


def read_history(results: Path) -> list[Entry]:
    """Every folder under `results`, oldest first; only changed folders are read again."""
    index = results / INDEX
    known = {entry.folder: entry for entry in _load(index)}
    entries = [_entry(results, path, known) for path in _folders(results)]
    entries = _with_marks(results, sorted(entries, key=lambda entry: (entry.created, entry.folder)))
    if entries != list(known.values()):
        _save(index, entries)
    return entries


def readable(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that are runs, each once: a published run is often a copy of one in results/."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.state != "unreadable" and (entry.published or entry.run_id not in found):
            found[entry.run_id] = entry
    return list(found.values())


def signature(path: Path) -> str:
    """Changes whenever a record or document of the folder does."""
    return " ".join(_stamp(path / name) for name in (*RECORDS, STOPPED, *DOCUMENTS))


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"


def _folders(results: Path) -> Iterator[Path]:
    for parent in (results, results / "published"):
        if parent.is_dir():
            with os.scandir(parent) as found:
                names = sorted(e.name for e in found if e.is_dir() and not e.name.startswith("."))
            yield from (parent / name for name in names if (parent, name) != (results, "published"))


def _entry(results: Path, path: Path, known: Mapping[str, Entry]) -> Entry:
    folder, now = path.relative_to(results).as_posix(), signature(path)
    before = known.get(folder)
    return before if before is not None and before.signature == now else _read(path, folder, now)


def _read(path: Path, folder: str, now: str) -> Entry:
    entry = Entry(folder, now, "unreadable", published=folder.startswith("published/"))
    if not (path / "run.json").exists():
        return replace(entry, problem="no run.json: half-written, or not a run of evalharness")
    try:
        return _checked(_filled(RunFolder(path), entry))
    except EvalHarnessError as error:
        return replace(entry, problem=error.message)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        return replace(entry, problem=f"run.json holds what no run has: {error}")


def _filled(folder: RunFolder, entry: Entry) -> Entry:
    run = folder.read_run()
    if run.run_id != folder.path.name:
        return replace(entry, problem=f"run.json belongs to another run, {run.run_id}")
    created, finished = _utc(run.created), _utc(run.finished) if run.finished else None
    if created.year not in YEARS:
        return replace(entry, problem=f"run.json was made by a clock that stood in the year {created.year}")
    engine, packages = dict(run.spec["engine"]), dict(run.provenance.get("packages") or {})
    git = dict(run.provenance.get("git") or {})
    entry = replace(
        entry,
        state="uncompared",
        problem=folder.read_text(STOPPED).strip() if (folder.path / STOPPED).exists() and not run.finished else "",
        run_id=run.run_id,
        profile=run.name,
        created=created.isoformat(),
        finished=finished.isoformat() if finished else None,
        engine=str(engine.get("kind", "")),
        model=str(engine.get("model", "")),
        version=_version(str(engine.get("kind", "")), packages),
        commit=str(git.get("commit", "")),
        is_dirty=bool(git.get("dirty")),
        lm_eval=str(packages.get("lm-eval", "")),
        gpu=", ".join(str(one.get("name", "?")) for one in run.provenance.get("gpu") or ()),
        seconds=run.timings.get("total"),
        tasks=tuple(str(task["name"]) for task in run.spec["tasks"]),
    )
    if not (folder.path / "comparison.json").exists():
        return entry
    comparison = decode(Comparison, folder.read_text("comparison.json"), f"{folder.path.name}/comparison.json")
    scores = tuple(_scores(run, comparison))
    verdict = comparison.verdict
    return replace(entry, state="compared", verdict=verdict.outcome.value, reasons=verdict.reasons, scores=scores)


def _utc(text: str) -> datetime:
    """A time of a run.json, which is UTC where it names no zone; raises ValueError, OverflowError."""
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _checked(entry: Entry) -> Entry:
    """The entry; raises ValueError for what JSON can say and no page or index can hold."""
    json.dumps(_plain(entry), ensure_ascii=False).encode()  # a lone surrogate is JSON, and no text
    counts = (count for s in entry.scores for count in (s.n, s.asked, s.errors, s.repeats, s.documents))
    if not all(0 <= count < MOST for count in counts):
        raise ValueError("a count is negative or beyond reason")
    return entry


def _version(engine: str, packages: Mapping[str, str]) -> str:
    """What was evaluated: vLLM's version, or this package's where its own engine ran."""
    name = "evalharness" if engine == "emulated" else "vllm"
    return f"{name} {packages[name]}" if name in packages else ""


def _scores(run: Run, comparison: Comparison) -> Iterator[Score]:
    speed = _speeds(run, comparison)
    for task in comparison.tasks:
        for score in task.scores:
            yield _score(run, task, score, speed.get(score.arm))


def _score(run: Run, task: TaskComparison, score: ArmScore, speed: float | None) -> Score:
    return Score(
        task=task.task,
        metric=task.metric,
        repeats=task.repeats,
        documents=task.documents,
        questions=str(run.identity.get(f"task {task.task}: questions", ""))[:16],
        task_verdict=task.verdict.outcome.value,
        arm=score.arm,
        capture=score.capture,
        n=score.n,
        asked=score.asked,
        errors=score.errors,
        value=_finite(score.value),
        low=_finite(score.interval.low) if score.interval else None,
        high=_finite(score.interval.high) if score.interval else None,
        output_tokens=_finite(score.output_tokens),
        length_ratio=_finite(score.length_ratio),
        degenerate=score.degenerate / score.n if score.n else None,
        truncated=score.truncated / score.n if score.n else None,
        tokens_per_second=speed,
        noise_floor=max((noise.floor for noise in task.noise), default=None),
    )


def _speeds(run: Run, comparison: Comparison) -> dict[str, float]:
    """Output tokens per second of each arm, over all its tasks and with its start-up."""
    tokens: dict[str, float] = {}
    for score in (score for task in comparison.tasks for score in task.scores):
        tokens[score.arm] = tokens.get(score.arm, 0.0) + (score.output_tokens or 0.0) * score.n
    return {arm.name: tokens[arm.name] / arm.seconds for arm in run.arms if arm.seconds and arm.name in tokens}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# --- answers of the newest runs -----------------------------------------------------------------------------


def _with_marks(results: Path, entries: Sequence[Entry]) -> list[Entry]:
    wanted = _newest(entries)
    return [_marked(results, e) if e.folder in wanted and _unmarked(e) else e for e in entries]


def _newest(entries: Sequence[Entry]) -> set[str]:
    """Folders whose answers are worth indexing: the newest and the last good of each series, and published ones."""
    wanted, taken = {e.folder for e in entries if e.published}, dict[tuple[str, str, str], int]()
    good = {e.series: e.folder for e in entries if e.verdict == "PASS"}
    for entry in reversed(entries):
        taken[entry.series] = taken.get(entry.series, 0) + 1
        if taken[entry.series] <= PAIRED_RUNS:
            wanted.add(entry.folder)
    return wanted | set(good.values())


def _unmarked(entry: Entry) -> bool:
    return entry.state == "compared" and any(score.marks is None for score in entry.scores)


def _marked(results: Path, entry: Entry) -> Entry:
    folder = RunFolder(results / entry.folder)
    scores = tuple(replace(s, marks=read_marks(folder, s.task, s.arm)) for s in entry.scores)
    return replace(entry, scores=scores)


# --- the file -----------------------------------------------------------------------------------------------


def _load(path: Path) -> list[Entry]:
    """What the index holds; nothing where it is missing, damaged or of another format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()  # read_table would import the whole dataset machinery
        if (table.schema.metadata or {}).get(b"evalharness") != FORMAT:
            return []
        return [_revived(row) for row in table.to_pylist()]
    except (OSError, pa.ArrowException, TypeError, KeyError):
        return []


def _revived(row: dict[str, Any]) -> Entry:
    scores = tuple(Score(**score) for score in row.pop("scores") or ())
    row |= {name: tuple(row[name] or ()) for name in ("reasons", "tasks")}
    return Entry(**row, scores=scores)


def _table(entries: Sequence[Entry]) -> Any:
    """The entries as a typed Arrow table. Through JSON lines, because Arrow's own conversion loads pandas."""
    import pyarrow as pa
    from pyarrow import json as reader

    types = {
        "str": pa.string(),
        "str | None": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float | None": pa.float64(),
        "tuple[str, ...]": pa.list_(pa.string()),
    }
    types["tuple[Score, ...]"] = pa.list_(pa.struct([(f.name, types[str(f.type)]) for f in fields(Score)]))
    schema = pa.schema([(field.name, types[str(field.type)]) for field in fields(Entry)])
    if not entries:
        return schema.empty_table()
    lines = [json.dumps(_plain(entry)) for entry in entries]
    options = reader.ReadOptions(block_size=max(map(len, lines)) + (1 << 20))
    data = pa.BufferReader("\n".join(lines).encode())
    return reader.read_json(data, options, reader.ParseOptions(explicit_schema=schema))


def _plain(record: Entry | Score) -> dict[str, Any]:
    row = {field.name: getattr(record, field.name) for field in fields(record)}
    return row | {"scores": [_plain(score) for score in record.scores]} if isinstance(record, Entry) else row


def _save(path: Path, entries: Sequence[Entry]) -> None:
    """Replace the index; a results folder that cannot be written goes without one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = pa.BufferOutputStream()
    pq.write_table(_table(entries).replace_schema_metadata({b"evalharness": FORMAT}), written)
    with suppress(OSError):
        replace_file(path, written.getvalue().to_pybytes())
