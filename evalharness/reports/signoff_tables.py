"""Tables of the sign-off report: title, columns and cells as every format shows them, and those of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from evalharness.records import (
    Answer,
    ArmScore,
    Cause,
    Comparison,
    Outcome,
    TaskComparison,
)
from evalharness.reports.words import MISSING, figure, limits, p_value, plain, rates_line, size

Tone = Literal["", "good", "bad", "warn"]
TONES: Final[Mapping[str, Tone]] = {
    Outcome.PASS: "good",
    Outcome.FAIL: "bad",
    Outcome.ERROR: "bad",
    Outcome.INVALID: "warn",
    Outcome.INCONCLUSIVE: "warn",
    Answer.YES: "good",
    Answer.NO: "bad",
    Answer.UNDECIDED: "warn",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; `small` goes under `text`, `tone` colours what the words already say."""

    text: str
    small: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its header; rows of one `group` (a task) stand together under its name."""

    head: str
    cells: tuple[Cell, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` name every column but the first, whose cells are the rows' headers. `about` is one sentence."""

    title: str
    about: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def empty(self) -> bool:
        """Nothing to show: a run without answers has tables without columns."""
        return not (self.columns and self.rows)

    @property
    def groups(self) -> list[tuple[str, list[Row]]]:
        """Rows by group, in order."""
        return [(group, list(rows)) for group, rows in groupby(self.rows, key=lambda row: row.group)]


# --- verdict ---------------------------------------------------------------------------------------------

ASKED: Final = {
    "reproduced": "Reproduced: is stock worse than eager?",
    "recovered": "Recovered: is patched better than stock, and as good as eager?",
    "no_regression": "No regression: is the arm as good as the reference?",
    "as_published": "As published: do the intervals hold the published figures?",
}


def questions(comparison: Comparison) -> Table:
    """One row a question, one column a task."""
    names = dict.fromkeys(q.name for task in comparison.tasks for q in task.verdict.questions)
    rows = [
        Row(ASKED.get(name, plain(name)), tuple(_answer(task, name) for task in comparison.tasks)) for name in names
    ]
    rows.append(Row("Verdict", tuple(_verdict(task) for task in comparison.tasks)))
    tasks = tuple(plain(task.task) for task in comparison.tasks)
    return Table("Questions", "What the run was asked, and its answer on each task.", "question", tasks, tuple(rows))


def _answer(task: TaskComparison, name: str) -> Cell:
    found = [question for question in task.verdict.questions if question.name == name]
    if not found:
        return Cell(MISSING, "not asked of this task")
    order = (Answer.NO, Answer.UNDECIDED, Answer.YES)
    worst = min((question.answer for question in found), key=order.index)
    return Cell(worst.value, plain(" ".join(r for q in found for r in q.reasons)), TONES[worst])


def _verdict(task: TaskComparison) -> Cell:
    outcome = task.verdict.outcome
    blocked = outcome in {Outcome.INVALID, Outcome.ERROR, Outcome.INCONCLUSIVE}
    return Cell(outcome.value, plain(" ".join(task.verdict.reasons)) if blocked else "", TONES[outcome])


# --- results ---------------------------------------------------------------------------------------------


def results(comparison: Comparison) -> Table:
    """One row per task and arm."""
    columns = (
        "accuracy",
        f"minus {plain(comparison.reference)}",
        "verdict",
        "recovery",
        "p",
        "tokens alike",
        "n answered",
    )
    rows = [
        Row(plain(score.arm), tuple(_result(comparison, task, score)), plain(task.task))
        for task in comparison.tasks
        for score in task.scores
    ]
    about = (
        f"Accuracy with its {comparison.level:.0%} interval; differences are paired, question by question; "
        f"p is two-sided. The verdict of an arm says whether it holds the accuracy of {plain(comparison.reference)}."
    )
    return Table("Results", about, "arm", columns, tuple(rows))


def _result(comparison: Comparison, task: TaskComparison, score: ArmScore) -> Iterator[Cell]:
    found = task.contrast(score.arm, comparison.reference or "")
    recovery = next((r for r in task.recovery if r.arm == score.arm), None)
    yield Cell(figure(score.value), limits(score.interval))
    yield Cell(_signed(found.difference), limits(found.interval)) if found else Cell("reference")
    yield Cell(score.outcome.value, tone=TONES[score.outcome]) if score.outcome else Cell(MISSING)
    yield Cell(figure(recovery.value), limits(recovery.interval)) if recovery else Cell(MISSING)
    yield Cell(p_value(found.p_two_sided), found.test) if found else Cell(MISSING)
    yield Cell(figure(score.agreement.tokens) if score.agreement else MISSING)
    yield Cell(size(task), f"{score.n} of {score.asked}")


def _signed(difference: float | None) -> str:
    return MISSING if difference is None else f"{difference:+.3f}"


def causes(comparison: Comparison) -> Table:
    """Answers by cause; the points each cause costs under the count."""
    named = [cause for cause in Cause if _any(comparison, cause)]
    rows = [
        Row(plain(score.arm), tuple(_cause(score, cause) for cause in named), plain(task.task))
        for task in comparison.tasks
        for score in task.scores
    ]
    about = "How many answers ended how, with the accuracy each cause costs. Infrastructure errors are never wrong."
    return Table("Causes", about, "arm", tuple(cause.value.replace("_", " ") for cause in named), tuple(rows))


def _any(comparison: Comparison, cause: Cause) -> bool:
    return any(score.causes.get(cause.value) for task in comparison.tasks for score in task.scores)


def _cause(score: ArmScore, cause: Cause) -> Cell:
    lost = score.lost.get(cause.value)
    return Cell(str(score.causes.get(cause.value, 0)), f"{-lost:.3f}" if lost else "")


def noise_lines(comparison: Comparison) -> Iterator[str]:
    """Noise floor of every A/A pair, and what the gate does by chance."""
    for task in comparison.tasks:
        for noise in task.noise:
            yield (
                f"{plain(task.task)}: {plain(noise.arms[0])} and {plain(noise.arms[1])} differ by "
                f"{noise.difference:+.3f} ({noise.flips} answers flip); differences up to {noise.floor:.3f} are noise."
            )
        rates = rates_line(task)
        if rates:
            yield f"{plain(task.task)}: {plain(rates)}."
