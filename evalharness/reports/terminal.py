"""The table a run ends with, for a terminal of 100 columns; three arms fit 80."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from evalharness.records import ArmScore, Comparison, Interval, Outcome, TaskComparison
from evalharness.reports.words import (
    MISSING,
    agreement_lines,
    columns,
    concurrency_lines,
    figure,
    header,
    plain,
    published_lines,
    size,
)

STYLES: Final = {
    Outcome.PASS: "bold green",
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.INVALID: "bold magenta",
    Outcome.ERROR: "bold red",
}
UNLIMITED: Final = 10_000


def render(comparison: Comparison) -> RenderableType:
    """Header line, one row per task, token agreement, dependence on concurrency, the published figures, and the
    verdict in words."""
    paces = [f"{task.task}: {line}" for task in comparison.tasks for line in concurrency_lines(task)]
    below = [*agreement_lines(comparison), *map(plain, paces), *published_lines(comparison)]
    below += map(plain, comparison.notes)
    lines = [Text(line, style="dim") for line in below]
    return Group(Text(header(comparison)), _Fitted(comparison), *lines, _verdict(comparison))


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The table, drawn closer together where the terminal is too narrow: a figure is folded only after that."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        roomy = _table(self.comparison, 1)
        needed = console.measure(roomy, options=options.update_width(UNLIMITED)).maximum
        yield roomy if needed <= options.max_width else _table(self.comparison, 0)


def _table(comparison: Comparison, padding: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, padding))
    table.add_column("task", no_wrap=True)
    table.add_column("metric", overflow="fold")
    table.add_column("n", justify="right")
    arms = columns(comparison)
    for name in arms:
        table.add_column(Text(plain(name)), overflow="fold")
    table.add_column("recovery", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for task in comparison.tasks:
        cells = [_score(task.score(arm)) for arm in arms]
        table.add_row(Text(plain(task.task)), task.metric, size(task), *cells, _recovery(task), _outcome(task))
    return table


def _score(score: ArmScore | None) -> Text:
    return Text(MISSING) if score is None else _figure(score.value, score.interval)


def _recovery(task: TaskComparison) -> Text:
    first = next(iter(task.recovery), None)
    return Text(MISSING) if first is None else _figure(first.value, first.interval)


def _figure(value: float | None, interval: Interval | None) -> Text:
    """The figure over its interval, so that the columns stay narrow."""
    text = Text(figure(value))
    if interval is not None:
        text.append(f"\n{interval.low:.2f}-{interval.high:.2f}", style="dim")
    return text


def _outcome(task: TaskComparison) -> Text:
    return Text(task.verdict.outcome.value, style=STYLES[task.verdict.outcome])


def _verdict(comparison: Comparison) -> Text:
    verdict = comparison.verdict
    text = Text(verdict.outcome.value, style=STYLES[verdict.outcome])
    for reason in verdict.reasons:
        text.append(f"\n  {plain(reason)}", style="not bold default")
    return text
