"""signoff.pdf: the sign-off on a few A4 pages, drawn with ReportLab and its own fonts (no system package)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final
from xml.sax.saxutils import escape

from reportlab.graphics.shapes import Circle, Drawing, Line, Polygon, String
from reportlab.lib.colors import HexColor
from reportlab.lib.enums import TA_LEFT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import CondPageBreak, Flowable, KeepTogether, Paragraph, SimpleDocTemplate, Spacer, TableStyle
from reportlab.platypus import Table as Grid

from evalharness.reports import charts
from evalharness.reports.charts import Chart, Mark
from evalharness.reports.signoff import Answered, AnswerPair, Flips, Signoff
from evalharness.reports.signoff_tables import TONES, Cell, Table
from evalharness.reports.visible import Excerpt
from evalharness.reports.words import plain

BRIEF: Final = 3  # flips of each direction shown
MARGIN: Final = 15 * mm
FRAME: Final = 6  # points that ReportLab keeps free inside the margins
INK, FAINT, RULE, PANEL = "#1b1f24", "#57606a", "#c4cad1", "#f5f6f8"
COLOURS: Final = {"": "#0b57a4", "good": "#116329", "bad": "#a40e26", "warn": "#7a4d00"}
PAPERS: Final = {"": PANEL, "good": "#e6f4ea", "bad": "#fdebec", "warn": "#fff3d6"}
SPELLED: Final = str.maketrans(  # what the fonts lack, in what they have
    {
        "→": "to",
        "\t": "    ",
        "⟨": "\u2039",
        "⟩": "\u203a",
        "\u2421": "\u20397F\u203a",
        "\u2423": "_",
        "\u21b5": "¶",
        "\u21e5": "»",
    }
    | {chr(0x2400 + code): f"\u2039{code:02X}\u203a" for code in range(0x20)}
)
LEAST: Final = 30 * mm  # room below a heading, or it goes to the next page


def render(signoff: Signoff) -> bytes:
    """The whole document; the same record gives the same bytes."""
    _fonts()
    out = io.BytesIO()
    title = f"{signoff.comparison.verdict.outcome.value}: {plain(signoff.comparison.name)}: accuracy sign-off"
    document = SimpleDocTemplate(
        out, pagesize=A4, leftMargin=MARGIN, rightMargin=MARGIN, topMargin=14 * mm, bottomMargin=16 * mm,
        title=_covered(title), author="evalharness", subject=_covered(signoff.headline), lang="en", invariant=1,
    )  # fmt: skip
    footer = partial(_footer, run_id=_covered(signoff.comparison.run_id))
    document.build(list(_story(signoff, A4[0] - 2 * MARGIN - 2 * FRAME)), onFirstPage=footer, onLaterPages=footer)
    return out.getvalue()


def _story(signoff: Signoff, width: float) -> Iterator[Flowable]:
    yield _verdict(signoff, width)
    yield from _table(signoff.results, width, (0.12, 0.17, 0.19, 0.09, 0.17, 0.11, 0.11, 0.13))
    yield _charts(signoff, width)
    yield from _table(signoff.questions, width)
    yield from _table(signoff.evidence, width)
    yield from _table(signoff.costs, width)
    yield from _table(signoff.causes, width)
    yield from _list("Noise and error rates", signoff.noise)
    yield from _list("Limits", signoff.limits)
    for found in signoff.flips:
        yield from _flips(found, width)
    yield from _table(signoff.provenance, width, (0.25, 0.75))


# --- text ------------------------------------------------------------------------------------------------


@cache
def _fonts() -> None:
    for name, file in (("Sans", "Vera"), ("Sans-Bold", "VeraBd"), ("Sans-Italic", "VeraIt")):
        pdfmetrics.registerFont(TTFont(name, f"{file}.ttf"))
    pdfmetrics.registerFontFamily("Sans", normal="Sans", bold="Sans-Bold", italic="Sans-Italic", boldItalic="Sans-Bold")


def _style(size: float = 8, colour: str = INK, bold: bool = False, **more: Any) -> ParagraphStyle:
    font = "Sans-Bold" if bold else "Sans"
    settings = {"leading": size * 1.32, "alignment": TA_LEFT, "splitLongWords": 1, **more}
    return ParagraphStyle("any", fontName=font, fontSize=size, textColor=HexColor(colour), **settings)


def _covered(text: str) -> str:
    """`text` in the characters the font has; each run of others is named by its first code point."""
    known = pdfmetrics.getFont("Sans").face.charToGlyph
    shown, missing = [], ""
    for char in [*text.translate(SPELLED), ""]:
        if char and char != "\n" and ord(char) not in known:
            missing += char
            continue
        if missing:
            more = f" +{len(missing) - 1}" if len(missing) > 1 else ""
            shown.append(f"[U+{ord(missing[0]):04X}{more}]")
            missing = ""
        shown.append(char)
    return "".join(shown)


def _words(text: str, style: ParagraphStyle) -> Paragraph:
    return Paragraph(escape(_covered(text)).replace("\n", "<br/>"), style)


def _footer(canvas: Any, document: Any, run_id: str) -> None:
    canvas.saveState()
    canvas.setFont("Sans", 7)
    canvas.setFillColor(HexColor(FAINT))
    canvas.drawString(MARGIN, 9 * mm, f"{run_id}   evalharness verify recomputes every figure of this report")
    canvas.drawRightString(A4[0] - MARGIN, 9 * mm, f"page {document.page}")
    canvas.restoreState()


# --- parts -----------------------------------------------------------------------------------------------


def _verdict(signoff: Signoff, width: float) -> Flowable:
    verdict = signoff.comparison.verdict
    tone = TONES[verdict.outcome]
    points = [*(verdict.reasons if verdict.outcome.exit_code else ()), *(f"{fact}." for fact in signoff.facts)]
    lines = [
        _words(f"{verdict.outcome.value}   {plain(signoff.comparison.name)}", _style(16, COLOURS[tone], bold=True)),
        _words(signoff.headline, _style(10.5, bold=True, spaceBefore=3)),
        _words(signoff.advice, _style(9, spaceBefore=2)),
        *(_words(f"• {plain(point)}", _style(8.5, spaceBefore=2)) for point in points),
        _words(signoff.subject, _style(8, FAINT, spaceBefore=2)),
    ]
    box = Grid([[lines]], colWidths=[width])
    box.setStyle(
        TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, -1), HexColor(PAPERS[tone])),
                ("LINEBEFORE", (0, 0), (0, -1), 5, HexColor(COLOURS[tone])),
                ("LEFTPADDING", (0, 0), (-1, -1), 12),
                ("TOPPADDING", (0, 0), (-1, -1), 6),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 8),
            ]
        )
    )
    return box


def _table(table: Table, width: float, shares: tuple[float, ...] = ()) -> Iterator[Flowable]:
    if table.empty:
        return
    heads = [_words(name, _style(7, FAINT, bold=True)) for name in (table.corner, *table.columns)]
    lines: list[list[Flowable | str]] = [heads]
    marks: list[Any] = []
    for group, rows in table.groups:
        if group:
            marks.append(("SPAN", (0, len(lines)), (-1, len(lines))))
            lines.append([_words(group, _style(8, bold=True)), *[""] * len(table.columns)])
        lines += [[_words(row.head, _style()), *map(_cell, row.cells)] for row in rows]
    columns = len(heads)
    even = shares or (0.24, *[0.76 / (columns - 1)] * (columns - 1))
    grid = Grid(lines, colWidths=[width * share / sum(even) for share in even], repeatRows=1)
    grid.setStyle(TableStyle([*_RULES, *marks]))
    yield from (
        CondPageBreak(LEAST),
        _heading(table.title),
        _words(table.about, _style(7.5, FAINT, spaceAfter=2)),
        grid,
    )


_RULES: Final = [
    ("LINEBELOW", (0, 0), (-1, -1), 0.4, HexColor(RULE)),
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ("LEFTPADDING", (0, 0), (-1, -1), 0),
    ("RIGHTPADDING", (0, 0), (-1, -1), 6),
    ("TOPPADDING", (0, 0), (-1, -1), 1.5),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 2.5),
]


def _cell(cell: Cell) -> list[Flowable]:
    colour = COLOURS[cell.tone] if cell.tone else INK
    parts: list[Flowable] = [_words(cell.text, _style(8, colour, bold=bool(cell.tone)))]
    if cell.small:
        parts.append(_words(cell.small, _style(6.5, FAINT)))
    return parts


def _heading(text: str) -> Flowable:
    return _words(text, _style(11, bold=True, spaceBefore=9, spaceAfter=1))


def _list(title: str, lines: tuple[str, ...]) -> Iterator[Flowable]:
    if lines:
        items = [_words(f"• {line}", _style(8, spaceBefore=1.5)) for line in lines]
        yield KeepTogether([_heading(title), *items])


def _flips(found: Flips, width: float) -> Iterator[Flowable]:
    title = (
        f"{plain(found.task)}: {plain(found.arm)} against {plain(found.baseline)}, {found.losses} lost, "
        f"{found.gains} gained"
    )
    yield from (CondPageBreak(LEAST), _heading(title))
    for pair in (*found.lost[:BRIEF], *found.gained[:BRIEF]):
        yield KeepTogether([_pair_head(pair), _answers(pair, width), Spacer(1, 4)])


def _pair_head(pair: AnswerPair) -> Flowable:
    repeat = f", repeat {pair.repeat}" if pair.repeat else ""
    token = "" if pair.token is None else f"; first differing token {pair.token}"
    return _words(f"document {pair.doc_id}{repeat}: expected {pair.target[:60]}{token}", _style(8, spaceBefore=3))


def _answers(pair: AnswerPair, width: float) -> Flowable:
    box = Grid([[_answer(pair.baseline), _answer(pair.arm)]], colWidths=[width / 2] * 2)
    box.setStyle(
        TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, -1), HexColor(PANEL)),
                ("LINEAFTER", (0, 0), (0, -1), 6, HexColor("#ffffff")),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("RIGHTPADDING", (0, 0), (-1, -1), 10),
            ]
        )
    )
    return box


def _answer(answer: Answered) -> list[Flowable]:
    right = answer.score >= 1
    word = "right" if right else answer.cause.replace("_", " ")
    head = f"{plain(answer.arm)}: {word}"
    return [
        _words(head, _style(7.5, COLOURS["good" if right else "bad"], bold=True)),
        Paragraph(_excerpt(answer.text), _style(7, spaceBefore=1)),
    ]


def _excerpt(excerpt: Excerpt) -> str:
    """Pieces as ReportLab's markup: the difference on a ground of its own, notes in italics."""
    tags = {
        "text": "{}",
        "mark": '<font backColor="#ffe08a">{}</font>',
        "note": '<i><font color="#0b57a4">{}</font></i>',
    }
    parts = [tags[piece.kind].format(escape(_covered(piece.text)).replace("\n", "<br/>")) for piece in excerpt]
    return "".join(parts) or "<i>[empty]</i>"


# --- charts ----------------------------------------------------------------------------------------------


def _charts(signoff: Signoff, width: float) -> Flowable:
    found = charts.charts(signoff.comparison)
    column = width / max(len(found), 1)
    cells = [[_words(chart.title, _style(8.5, bold=True)), _drawing(chart, column - 8)] for chart in found]
    row = Grid([cells], colWidths=[column] * len(found), spaceBefore=8) if cells else Spacer(1, 1)
    if cells:
        row.setStyle(TableStyle([("VALIGN", (0, 0), (-1, -1), "TOP"), ("LEFTPADDING", (0, 0), (-1, -1), 0)]))
    return row


def _drawing(chart: Chart, width: float) -> Drawing:
    scale = width / charts.WIDTH
    drawing = Drawing(width, chart.height * scale)
    drawing.scale(scale, scale)
    top = chart.height
    for value, label in chart.ticks:
        x = chart.x(value)
        drawing.add(Line(x, charts.FOOT - 4, x, top - charts.TOP - charts.HEAD + 4, strokeColor=HexColor(RULE)))
        drawing.add(_string(x, charts.FOOT - 19, label, FAINT, "middle"))
    for y, group, mark in chart.rows():
        for shape in _shapes(chart, top - y, group, mark):
            drawing.add(shape)
    return drawing


def _string(x: float, y: float, text: str, colour: str, anchor: str = "start", bold: bool = False) -> String:
    font = "Sans-Bold" if bold else "Sans"
    return String(x, y, _covered(text), fontName=font, fontSize=12, fillColor=HexColor(colour), textAnchor=anchor)


def _shapes(chart: Chart, y: float, group: str, mark: Mark | None) -> Iterator[Any]:
    if mark is None:
        yield _string(0, y - 5, group, INK, bold=True)
        return
    colour = HexColor(COLOURS[mark.tone])
    yield _string(8, y - 4, charts.short(mark.name), FAINT)
    if mark.interval is not None:
        low, high = chart.x(mark.interval.low), chart.x(mark.interval.high)
        ends = ((low, y, high, y), (low, y - 4, low, y + 4), (high, y - 4, high, y + 4))
        yield from (Line(*end, strokeColor=colour, strokeWidth=2) for end in ends)
    if mark.published is not None:
        x = chart.x(mark.published)
        yield Line(x, y - 8, x, y + 8, strokeColor=HexColor(INK), strokeWidth=2, strokeDashArray=[2, 2])
    if mark.value is None:
        return
    yield _string(charts.WIDTH - charts.RIGHT + 10, y - 4, f"{mark.value:.3f}", INK)
    x = chart.x(mark.value)
    if mark.tone == "bad":
        yield Polygon([x, y - 6, x + 6, y, x, y + 6, x - 6, y], fillColor=colour, strokeColor=None)
    else:
        yield Circle(x, y, 4.5, fillColor=colour, strokeColor=None)
