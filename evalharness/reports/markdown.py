"""comparison.md: the table and what stands behind it, fit for a pull-request comment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from evalharness.records import ArmScore, Comparison, Contrast, Flip, Interval, TaskComparison
from evalharness.reports.words import (
    MISSING,
    arms_of,
    detail_lines,
    figure,
    header,
    limits,
    plain,
    published_lines,
    size,
)

NAMED: Final = 12  # flips named of each direction; comparison.json has more


def render(comparison: Comparison) -> str:
    """Verdict, table, details of each task and its flips."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"# {escape(comparison.name)}: {comparison.verdict.outcome.value}"
    yield from (
        "",
        escape(header(comparison)),
        f"run: {escape(comparison.run_id)}   policy: {escape(comparison.policy)}",
        "",
    )
    yield from (f"- {escape(reason)}" for reason in comparison.verdict.reasons)
    yield from ("", *_table(comparison), "")
    yield from (f"{escape(line)}\n" for line in (*published_lines(comparison), *comparison.notes))
    for task in comparison.tasks:
        yield f"## {escape(task.task)}: {task.verdict.outcome.value}"
        yield ""
        yield from (f"- {escape(line)}" for line in _task_lines(task))
        yield ""


def escape(text: object) -> str:
    """`text` without meaning to Markdown or HTML."""
    marked = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in r"\`*_[]|#" else c for c in marked)


def _table(comparison: Comparison) -> Iterator[str]:
    arms = arms_of(comparison)
    head = ["task", "metric", "n", *(escape(arm) for arm in arms), "recovery", "verdict"]
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for task in comparison.tasks:
        yield f"| {' | '.join(_row(task, arms))} |"


def _row(task: TaskComparison, arms: list[str]) -> Iterator[str]:
    yield from (escape(task.task), escape(task.metric), size(task))
    for arm in arms:
        score = task.score(arm)
        yield MISSING if score is None else _cell(score.value, score.interval)
    first = next(iter(task.recovery), None)
    yield MISSING if first is None else _cell(first.value, first.interval)
    yield task.verdict.outcome.value


def _cell(value: float | None, interval: Interval | None) -> str:
    return f"{figure(value)} {limits(interval)}".strip()


def _task_lines(task: TaskComparison) -> Iterator[str]:
    yield from task.verdict.reasons
    yield from (line for score in task.scores for line in _secondary(score))
    yield from detail_lines(task)
    yield from (line for found in task.contrasts for line in _flips(found))


def _secondary(score: ArmScore) -> Iterator[str]:
    for metric in score.secondary:
        yield f"{score.arm} {metric.metric}: {_cell(metric.value, metric.interval)} (n {metric.n})"
    if score.disagreements:
        yield f"{score.arm}: lm-eval's extractor and the robust one score {score.disagreements} answers differently"


def _flips(found: Contrast) -> Iterator[str]:
    lost = [flip for flip in found.flips if flip.score < flip.baseline_score]
    gained = [flip for flip in found.flips if flip.score > flip.baseline_score]
    for word, flips, total in (("lost", lost, found.losses), ("gained", gained, found.gains)):
        if flips:
            named = ", ".join(_flip(flip) for flip in flips[:NAMED])
            more = f" and {total - NAMED} more" if total > NAMED else ""
            yield f"{found.arm} - {found.baseline}, {word} (document/repeat@first differing token): {named}{more}"


def _flip(flip: Flip) -> str:
    return f"{flip.doc_id}/{flip.repeat}@{MISSING if flip.first_divergence is None else flip.first_divergence}"
