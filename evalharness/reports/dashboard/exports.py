"""What people's own dashboards read: a Prometheus textfile, and results in lm-eval's format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from evalharness.store import SAFE_PART
from evalharness.watch.history import Entry, Score
from evalharness.watch.nights import Series, Status

Z95: Final = 1.959964
HELP: Final = {
    "accuracy": "Primary metric of the newest run that has a comparison, 0..1.",
    "accuracy_low": "Lower end of its confidence interval.",
    "accuracy_high": "Upper end of its confidence interval.",
    "samples": "Answers scored in that run.",
    "tokens_per_second": "Output tokens per second of the arm over all its tasks, start-up included.",
    "verdict": "1 for the status of the newest night, 0 for the others.",
    "last_run_age_seconds": "Seconds from the start of the newest run until this file was written.",
    "last_run_timestamp_seconds": "Unix time at which the newest run started.",
    "written_timestamp_seconds": "Unix time of this file.",
}
Line = tuple[str, dict[str, str], float]


def prometheus(found: Sequence[Series], now: datetime) -> str:
    """The text exposition format 0.0.4, for node_exporter's textfile collector."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in (*_lines(found, now), ("written_timestamp_seconds", {}, now.timestamp())):
        lines.setdefault(name, []).append(f"evalharness_{name}{_labels(labels)} {value!r}")
    blocks = (
        f"# HELP evalharness_{name} {HELP[name]}\n# TYPE evalharness_{name} gauge\n" + "\n".join(rows)
        for name, rows in lines.items()
    )
    return "\n".join(blocks) + "\n"


def _lines(found: Sequence[Series], now: datetime) -> Iterator[Line]:
    for series in found:
        own = {"profile": series.profile, "engine": series.engine, "model": series.model}
        for task in series.tasks or [""]:
            status = series.last.of(task) if task else series.last.status
            for other in Status:
                yield "verdict", {**own, "task": task, "verdict": other.value}, float(other is status)
        runs = [night.entry for night in series.nights if night.entry]
        if runs:
            yield "last_run_age_seconds", own, (now - runs[-1].at).total_seconds()
            yield "last_run_timestamp_seconds", own, runs[-1].at.timestamp()
        last = series.last_run
        if last is not None:
            yield from _arms(last, own)


def _arms(last: Entry, own: dict[str, str]) -> Iterator[Line]:
    for score in last.scores:
        labels = {**own, "task": score.task, "arm": score.arm}
        figures = {"accuracy": score.value, "accuracy_low": score.low, "accuracy_high": score.high, "samples": score.n}
        figures["tokens_per_second"] = score.tokens_per_second
        yield from ((name, labels, float(value)) for name, value in figures.items() if value is not None)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def lm_eval_results(entry: Entry) -> dict[str, str]:
    """File name -> text, one an arm: what `lm_eval --output_path` would have written, as far as it is known. An arm
    whose name cannot be a file's is left out."""
    arms = [arm for arm in dict.fromkeys(score.arm for score in entry.scores) if SAFE_PART.fullmatch(arm)]
    return {f"results_{arm}.json": json.dumps(_results(entry, arm), allow_nan=False) for arm in arms}


def _results(entry: Entry, arm: str) -> dict[str, Any]:
    scores = [score for score in entry.scores if score.arm == arm]
    return {
        "results": {score.task: _result(score) for score in scores},
        "group_subtasks": {score.task: [] for score in scores},
        "configs": {score.task: {"task": score.task, "repeats": score.repeats} for score in scores},
        "versions": {score.task: 1 for score in scores},
        "n-shot": {},
        "higher_is_better": {score.task: {"exact_match": True} for score in scores},
        "n-samples": {score.task: {"original": score.asked, "effective": score.n} for score in scores},
        "config": {"model": entry.engine, "model_args": {"pretrained": entry.model, "arm": arm}},
        "git_hash": entry.commit or None,
        "lm_eval_version": entry.lm_eval or None,
        "date": entry.at.timestamp(),
        "model_source": entry.engine,
        "model_name": entry.model,
        "model_name_sanitized": "".join(c if c.isalnum() or c in "-." else "_" for c in entry.model),
        "total_evaluation_time_seconds": None if entry.seconds is None else str(entry.seconds),
        "evalharness": {"run_id": entry.run_id, "verdict": entry.verdict, "version": entry.version},
    }


def _result(score: Score) -> dict[str, Any]:
    """lm-eval names a figure `metric,filter`. Its standard error is the half width of the interval over z: the
    intervals here already allow for repeated answers."""
    error = None
    if score.low is not None and score.high is not None and score.n:
        error = (score.high - score.low) / 2 / Z95
    return {
        "alias": score.task,
        "exact_match,none": score.value,
        "exact_match_stderr,none": error if error is not None and math.isfinite(error) else None,
    }


def history_rows(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """One flat row a (run, task, arm), and one a run or folder without any; newest last."""
    for entry in entries:
        common = {
            "run_id": entry.run_id or entry.folder,
            "profile": entry.profile,
            "created": entry.created,
            "engine": entry.engine,
            "model": entry.model,
            "version": entry.version,
            "commit": entry.commit[:12],
            "verdict": entry.verdict,
            "state": entry.state,
            "problem": entry.problem,
        }
        yield from ({**common, **_flat(score)} for score in entry.scores)
        if not entry.scores:
            yield common


COLUMNS: Final = (
    "run_id", "profile", "created", "engine", "model", "version", "commit", "verdict", "state", "task", "arm",
    "task_verdict", "metric", "n", "value", "low", "high", "output_tokens", "degenerate", "truncated",
    "tokens_per_second", "noise_floor", "problem",
)  # fmt: skip


def _flat(score: Score) -> dict[str, Any]:
    return {name: getattr(score, name) for name in COLUMNS if name in Score.__dataclass_fields__}
