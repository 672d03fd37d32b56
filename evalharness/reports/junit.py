"""junit.xml: a suite per task, a case per question of the gate and per arm's evidence."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from evalharness.records import Answer, Comparison, Outcome, TaskComparison, Verdict
from evalharness.reports.signoff import Signoff
from evalharness.reports.signoff_tables import Table
from evalharness.reports.words import plain

KINDS = {Outcome.FAIL: "failure", Outcome.ERROR: "error", Outcome.INVALID: "error", Outcome.INCONCLUSIVE: "skipped"}


def render(signoff: Signoff) -> str:
    """The verdict as JUnit XML: FAIL is a failure, INVALID and ERROR errors, INCONCLUSIVE a skipped test."""
    comparison = signoff.comparison
    root = ET.Element("testsuites", name=plain(comparison.name))
    for task in comparison.tasks:
        _suite(root, plain(task.task), comparison, [*_questions(task), _verdict(task.verdict)])
    if not comparison.tasks:
        _suite(root, "run", comparison, [_verdict(comparison.verdict)])
    _suite(root, "evidence", comparison, list(_evidence(signoff.evidence)))
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, name: str, comparison: Comparison, cases: list[ET.Element]) -> None:
    suite = ET.SubElement(root, "testsuite", name=name, timestamp=plain(comparison.created), tests=str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    properties = ET.SubElement(suite, "properties")
    for key, value in (("engine", comparison.engine), ("model", comparison.model), ("run_id", comparison.run_id)):
        ET.SubElement(properties, "property", name=key, value=plain(value))
    for case in cases:
        case.set("classname", f"{plain(comparison.name)}.{name}")
        suite.append(case)


def _questions(task: TaskComparison) -> Iterator[ET.Element]:
    """A question says what was found; what that makes of the task is the verdict's to say."""
    for question in task.verdict.questions:
        case = ET.Element("testcase", name=question.name)
        words = plain(" ".join(question.reasons))
        kind = {Answer.NO: KINDS.get(task.verdict.outcome), Answer.UNDECIDED: "skipped"}.get(question.answer)
        if kind and task.verdict.outcome is not Outcome.PASS:
            ET.SubElement(case, kind, message=words[:300], type=question.answer.value)
        ET.SubElement(case, "system-out").text = words
        yield case


def _verdict(verdict: Verdict) -> ET.Element:
    case = ET.Element("testcase", name="verdict")
    words = plain(" ".join(verdict.reasons))
    if verdict.outcome in KINDS:
        ET.SubElement(case, KINDS[verdict.outcome], message=words[:300], type=verdict.outcome.value).text = words
    return case


def _evidence(table: Table) -> Iterator[ET.Element]:
    """The last row of the evidence says of each arm whether its proof is complete."""
    for arm, cell in zip(table.columns, table.rows[-1].cells, strict=True):
        case = ET.Element("testcase", name=arm)
        if cell.tone == "bad":
            ET.SubElement(case, "error", message=cell.small[:300], type="INVALID").text = cell.small
        yield case
