"""comparison.csv: one row per (task, metric, arm); the first twelve columns are a contract with other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final

from evalharness.records import ArmScore, Comparison, Interval, TaskComparison
from evalharness.reports.words import plain

CONTRACT: Final = (
    "run_id", "engine", "model", "task", "metric", "arm", "n", "value", "ci_low", "ci_high", "token_agreement",
    "verdict",
)  # fmt: skip
ADDED: Final = (
    "arm_verdict", "documents", "repeats", "coverage", "errors", "identical", "difference", "difference_low",
    "difference_high", "p_two_sided", "test", "gains", "losses", "recovery", "created",
)  # fmt: skip
Row = dict[str, object]


def render(comparison: Comparison) -> str:
    """Every row; an unknown figure is an empty cell, and nothing is rounded."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*CONTRACT, *ADDED], restval="", lineterminator="\n")
    writer.writeheader()
    for task in comparison.tasks:
        for arm in dict.fromkeys([*comparison.arms, *(score.arm for score in task.scores)]):
            writer.writerows({k: _cell(v) for k, v in row.items()} for row in _rows(comparison, task, arm))
    return out.getvalue()


def _cell(value: object) -> object:
    """Names come from outside: a cell of text is one printable line."""
    return plain(value) if isinstance(value, str) else value


def _rows(comparison: Comparison, task: TaskComparison, arm: str) -> Iterator[Row]:
    common: Row = {
        "run_id": comparison.run_id,
        "engine": comparison.engine,
        "model": comparison.model,
        "task": task.task,
        "arm": arm,
        "verdict": task.verdict.outcome.value,
        "repeats": task.repeats,
        "created": comparison.created,
    }
    score = task.score(arm)
    if score is None:
        yield {**common, "metric": task.metric, "n": 0}
        return
    yield {**common, **_primary(comparison, task, score)}
    for metric in score.secondary:
        yield {
            **common,
            "metric": metric.metric,
            "n": metric.n,
            "value": metric.value,
            **_limits("ci", metric.interval),
        }


def _primary(comparison: Comparison, task: TaskComparison, score: ArmScore) -> Row:
    agreement = score.agreement
    found = task.contrast(score.arm, comparison.reference or "")
    recovery = next((r.value for r in task.recovery if r.arm == score.arm), None)
    row: Row = {
        "metric": task.metric,
        "n": score.n,
        "value": score.value,
        **_limits("ci", score.interval),
        "token_agreement": agreement.tokens if agreement else None,
        "arm_verdict": score.outcome.value if score.outcome else None,
        "documents": score.documents,
        "coverage": score.coverage,
        "errors": score.errors,
        "identical": agreement.identical if agreement else None,
        "recovery": recovery,
    }
    if found is not None:
        row |= {
            "difference": found.difference,
            **_limits("difference", found.interval),
            "p_two_sided": found.p_two_sided,
            "test": found.test,
            "gains": found.gains,
            "losses": found.losses,
        }
    return row


def _limits(prefix: str, interval: Interval | None) -> Row:
    return {f"{prefix}_low": interval.low, f"{prefix}_high": interval.high} if interval else {}
