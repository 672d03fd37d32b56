"""The sign-off record: what a release manager reads, as data. Every format of the report is a view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from evalharness.arms import deciding
from evalharness.assess import Stored
from evalharness.evidence import evidence_faults
from evalharness.records import (
    SCHEMA_VERSION,
    Answer,
    Comparison,
    Contrast,
    Flip,
    Outcome,
    Run,
    Sample,
    TaskComparison,
)
from evalharness.reports import signoff_costs as costing
from evalharness.reports import signoff_proofs as proofs
from evalharness.reports import signoff_tables as tables
from evalharness.reports.signoff_tables import Table
from evalharness.reports.visible import Excerpt, excerpts
from evalharness.reports.words import ENGINES, plain, published_lines, size

PAIRS: Final = 20  # flips shown of each direction with both answers; comparison.json names more
NEXT: Final = {
    Outcome.PASS: "The build may be signed off, within the limits named below.",
    Outcome.FAIL: "Do not sign off. The evidence and the answers that changed are below.",
    Outcome.INCONCLUSIVE: "Do not sign off yet: mend what is named, or ask more documents, and run again.",
    Outcome.INVALID: "Do not sign off: this run did not test the build. Mend what is named and run again.",
    Outcome.ERROR: "Do not sign off: infrastructure failed. Mend it and resume the run; finished answers are kept.",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of a flip, around the place where the two part."""

    arm: str
    score: float
    cause: str
    finish_reason: str
    output_tokens: int
    extracted: str | None
    text: Excerpt


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """A question that two arms scored differently on; `token` and `character` are where they part, if they do."""

    doc_id: int
    repeat: int
    target: str
    token: int | None
    character: int | None
    baseline: Answered
    arm: Answered


@dataclass(frozen=True, slots=True)
class Flips:
    """Changed answers of one contrast. `losses` and `gains` count all of them, `lost` and `gained` show the first."""

    task: str
    arm: str
    baseline: str
    losses: int
    gains: int
    lost: tuple[AnswerPair, ...]
    gained: tuple[AnswerPair, ...]


@dataclass(frozen=True, slots=True)
class Signoff:
    """A comparison with its evidence, in words and tables. Times are UTC ISO 8601."""

    comparison: Comparison
    headline: str
    advice: str
    subject: str
    facts: tuple[str, ...]
    questions: Table
    results: Table
    evidence: Table
    costs: Table
    causes: Table
    noise: tuple[str, ...]
    flips: tuple[Flips, ...]
    provenance: Table
    limits: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION


def build(stored: Stored, comparison: Comparison) -> Signoff:
    """The sign-off of a stored run; nothing in it is older than its samples."""
    return Signoff(
        comparison=comparison,
        headline=headline(comparison),
        advice=NEXT[comparison.verdict.outcome],
        subject=_subject(comparison),
        facts=tuple(_facts(stored)),
        questions=tables.questions(comparison),
        results=tables.results(comparison),
        evidence=proofs.evidence(stored),
        costs=costing.costs(stored),
        causes=tables.causes(comparison),
        noise=tuple(tables.noise_lines(comparison)),
        flips=tuple(_flips(stored, comparison)),
        provenance=proofs.provenance(stored.run, stored.policy.name),
        limits=tuple(limits(stored.run, comparison)),
    )


def headline(comparison: Comparison) -> str:
    """The verdict in one sentence."""
    outcome = comparison.verdict.outcome
    worst = [plain(task.task) for task in comparison.tasks if task.verdict.outcome is outcome]
    return f"{HEADLINES[outcome](comparison)} ({', '.join(worst)})." if worst else f"{HEADLINES[outcome](comparison)}."


def _passed(comparison: Comparison) -> str:
    arms = _judged(comparison)
    held = f"{_and(arms)} hold{'' if len(arms) > 1 else 's'} the accuracy of {comparison.reference}"
    if any(q.name == "reproduced" for task in comparison.tasks for q in task.verdict.questions):
        return f"The fault shows in the stock capture path, and {held}"
    return held


def _failed(comparison: Comparison) -> str:
    names = {q.name for task in comparison.tasks for q in task.verdict.questions if q.answer is Answer.NO}
    if names == {"as_published"}:
        return "The published figures were not met"
    lost = {s.arm for task in comparison.tasks for s in task.scores if s.outcome is Outcome.FAIL}
    arms = [arm for arm in _judged(comparison) if arm in lost] or _judged(comparison)
    return f"{_and(arms)} {'do' if len(arms) > 1 else 'does'} not hold the accuracy of {comparison.reference}"


def _and(arms: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(arms[:-1]), arms[-1]])) if arms else "No arm"


def _judged(comparison: Comparison) -> list[str]:
    """Arms whose accuracy the verdict is about: the repaired ones, or else all but the reference."""
    named = {s.arm: s.capture for task in comparison.tasks for s in task.scores}
    arms = {arm: named[arm] for arm in deciding(named)}
    patched = [arm for arm, capture in arms.items() if capture in {"patched", "native"}]
    return [plain(arm) for arm in patched or arms if arm != comparison.reference]


HEADLINES: Final[dict[Outcome, Callable[[Comparison], str]]] = {
    Outcome.PASS: _passed,
    Outcome.FAIL: _failed,
    Outcome.INCONCLUSIVE: lambda _: "Too little was measured to decide",
    Outcome.INVALID: lambda _: "The run does not prove what it set out to test",
    Outcome.ERROR: lambda _: "Infrastructure failed before an answer was reached",
}


def _subject(comparison: Comparison) -> str:
    engine = ENGINES.get(comparison.engine, comparison.engine)
    sizes = ", ".join(f"{plain(task.task)} n {size(task)}" for task in comparison.tasks)
    return f"{plain(comparison.model)} on engine {plain(engine)}; {sizes or 'no answers'}; {comparison.created[:10]}"


def _facts(stored: Stored) -> Iterator[str]:
    """What a reader wants to know beside the verdict."""
    required = stored.policy.required_evidence
    arms = [
        (plain(arm.name), list(evidence_faults(arm, stored.evidence.get(arm.name), required)))
        for arm in stored.run.arms
    ]
    faulty = [name for name, faults in arms if faults]
    if faulty:
        yield f"Evidence is missing: {', '.join(faulty)}"
    elif required:
        yield f"Evidence: every arm proved that it ran the path it names ({len(arms)} of {len(arms)})"
    yield from costing.cost_lines(stored)


# --- answers that changed --------------------------------------------------------------------------------


def _flips(stored: Stored, comparison: Comparison) -> Iterator[Flips]:
    """Changed answers of every arm against the reference, the judged arms first."""
    found = [(task, c) for task in comparison.tasks for c in task.contrasts if c.baseline == comparison.reference]
    judged = _judged(comparison)
    for task, contrast in sorted(found, key=lambda pair: plain(pair[1].arm) not in judged):
        if contrast.flips:
            yield _shown(stored, task, contrast)


def _shown(stored: Stored, task: TaskComparison, found: Contrast) -> Flips:
    lost = [flip for flip in found.flips if flip.score < flip.baseline_score][:PAIRS]
    gained = [flip for flip in found.flips if flip.score > flip.baseline_score][:PAIRS]
    wanted = {(f.doc_hash, f.doc_id, f.repeat) for f in (*lost, *gained)}
    answers = stored.samples[task.task]
    one, two = (
        {sample.key: sample for sample in answers[arm] if sample.key in wanted} for arm in (found.baseline, found.arm)
    )

    def pairs(flips: Iterable[Flip]) -> tuple[AnswerPair, ...]:
        keys = [((f.doc_hash, f.doc_id, f.repeat), f) for f in flips]
        return tuple(_pair(one[key], two[key], flip) for key, flip in keys)

    return Flips(task.task, found.arm, found.baseline, found.losses, found.gains, pairs(lost), pairs(gained))


def _pair(one: Sample, two: Sample, flip: Flip) -> AnswerPair:
    first, second, at = excerpts(_text(one), _text(two))
    return AnswerPair(
        doc_id=flip.doc_id,
        repeat=flip.repeat,
        target=plain(one.target),
        token=flip.first_divergence,
        character=at,
        baseline=_answered(one, flip.baseline_score, first),
        arm=_answered(two, flip.score, second),
    )


def _text(sample: Sample) -> str:
    return f"{sample.reasoning}\n[end of reasoning]\n{sample.response}" if sample.reasoning else sample.response


def _answered(sample: Sample, score: float, text: Excerpt) -> Answered:
    read = next((value for value in sample.extracted.values() if value is not None), None)
    return Answered(
        arm=sample.arm,
        score=score,
        cause=sample.cause.value,
        finish_reason=plain(sample.finish_reason),
        output_tokens=sample.output_tokens,
        extracted=None if read is None else plain(read[:60]),
        text=text,
    )


# --- limits ----------------------------------------------------------------------------------------------


def limits(run: Run, comparison: Comparison) -> Iterator[str]:
    """What this report does not show, one sentence a line."""
    if comparison.engine == "emulated":
        yield (
            "The engine is the emulated one, a miniature on the CPU. It shows the mechanism of the fault; its "
            "accuracy and speed are not those of vLLM or of any GPU."
        )
    if comparison.engine == "endpoint":
        yield "The engine is a server that others run: the capture path of an arm is what its operator says it is."
    yield from (_sentence(line[0].upper() + line[1:]) for line in published_lines(comparison))
    for task in comparison.tasks:
        yield from _task_limits(task)
    if not any(task.noise for task in comparison.tasks):
        yield "No arm ran twice, so the noise between two runs of one arm was not measured."
    yield from (_sentence(note) for note in comparison.notes)
    if _git(run).get("dirty"):
        yield "The working tree of the harness had uncommitted changes."


def _task_limits(task: TaskComparison) -> Iterator[str]:
    named = plain(task.task)
    powers = [c.detectable for c in task.contrasts if c.detectable is not None]
    if powers:
        yield f"{named}: a true loss below {max(powers):.3f} may go unseen at this n (80 % power)."
    for score in task.scores:
        if score.disagreements:
            yield (
                f"{named}: lm-eval's extractor and the robust one score {score.disagreements} answers of "
                f"{plain(score.arm)} differently; lm-eval's decides."
            )
    yield from (f"{named}: {_sentence(note)}" for note in task.notes)


def _sentence(text: str) -> str:
    return f"{plain(text).rstrip('.')}."


def _git(run: Run) -> dict[str, Any]:
    found = run.provenance.get("git")
    return dict(found) if isinstance(found, dict) else {}
