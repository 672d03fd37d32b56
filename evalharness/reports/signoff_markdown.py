"""signoff.md: the sign-off for a pull-request comment or a job summary."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape as escape_html
from typing import Final

from evalharness.records import Outcome
from evalharness.reports.markdown import escape
from evalharness.reports.signoff import Answered, AnswerPair, Flips, Signoff
from evalharness.reports.signoff_tables import Cell, Table
from evalharness.reports.visible import flat

BRIEF: Final = 2  # flips of each direction shown
LONGEST: Final = 60_000  # characters; GitHub refuses a comment of more than 65,536
SIGNS: Final = {
    Outcome.PASS: "✅",
    Outcome.FAIL: "❌",
    Outcome.ERROR: "❌",
    Outcome.INVALID: "⚠️",
    Outcome.INCONCLUSIVE: "⚠️",
}


def render(signoff: Signoff) -> str:
    """The verdict and the results open, everything else folded; at most LONGEST characters."""
    head = "\n".join(_head(signoff))
    parts = [*_folded(signoff)]
    while parts and len(head) + sum(map(len, parts)) > LONGEST:
        parts.pop()
    return "\n".join([head, *parts]) + "\n"


def _head(signoff: Signoff) -> Iterator[str]:
    verdict = signoff.comparison.verdict
    yield f"## {SIGNS[verdict.outcome]} {verdict.outcome.value}: {escape(signoff.comparison.name)}"
    yield from ("", f"**{escape(signoff.headline)}** {escape(signoff.advice)}", "", escape(signoff.subject), "")
    yield from (f"- {escape(fact)}." for fact in signoff.facts)
    if verdict.outcome is not Outcome.PASS:
        yield from (f"- {escape(reason)}" for reason in verdict.reasons)
    yield ""
    yield from _table(signoff.results)


def _folded(signoff: Signoff) -> Iterator[str]:
    tables = (signoff.questions, signoff.evidence, signoff.costs, signoff.causes)
    for table in (table for table in tables if not table.empty):
        yield _fold(table.title, "\n".join([f"{escape(table.about)}\n", *_table(table)]))
    lines = [f"- {escape(line)}" for line in (*signoff.noise, *signoff.limits)]
    yield _fold("Noise, error rates and limits", "\n".join(lines))
    yield _fold(signoff.provenance.title, "\n".join(_table(signoff.provenance)))
    yield from (_fold(_flips_title(found), "\n".join(_flips(found))) for found in signoff.flips)


def _fold(title: str, body: str) -> str:
    return f"\n<details><summary>{escape_html(title)}</summary>\n\n{body}\n\n</details>"


def _table(table: Table) -> Iterator[str]:
    if table.empty:
        return
    grouped = any(row.group for row in table.rows)
    heads = [*(["task"] if grouped else []), table.corner, *table.columns]
    yield f"| {' | '.join(map(escape, heads))} |"
    yield f"|{'---|' * len(heads)}"
    for row in table.rows:
        first = [escape(row.group)] if grouped else []
        yield f"| {' | '.join([*first, escape(row.head), *map(_cell, row.cells)])} |"


def _cell(cell: Cell) -> str:
    text = f"**{escape(cell.text)}**" if cell.tone else escape(cell.text)
    return f"{text}<br><sub>{escape(cell.small)}</sub>" if cell.small else text


def _flips_title(found: Flips) -> str:
    return f"{found.task}: {found.arm} against {found.baseline}, {found.losses} lost, {found.gains} gained"


def _flips(found: Flips) -> Iterator[str]:
    for pair in (*found.lost[:BRIEF], *found.gained[:BRIEF]):
        yield _question(pair)
        yield from (_answer(answer) for answer in (pair.baseline, pair.arm))


def _question(pair: AnswerPair) -> str:
    token = "" if pair.token is None else f", first differing token {pair.token}"
    return f"document {pair.doc_id}, repeat {pair.repeat}: expected {escape(pair.target)}{token}\n"


def _answer(answer: Answered) -> str:
    word = "right" if answer.score >= 1 else answer.cause.replace("_", " ")
    text = escape_html(flat(answer.text)) or "[empty]"
    return f"{escape(answer.arm)}, {word}:\n<pre>\n{text}\n</pre>\n"
