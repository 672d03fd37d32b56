"""The verdict: three questions kept apart, and whatever stands in the way of answering them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from evalharness.arms import deciding
from evalharness.evidence import evidence_faults
from evalharness.policy import Policy
from evalharness.records import (
    Answer,
    ArmEvidence,
    ArmScore,
    ArmState,
    ArmSummary,
    Contrast,
    Outcome,
    Question,
    TaskComparison,
    Verdict,
)

WORST_FIRST: Final = (Outcome.FAIL, Outcome.ERROR, Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.PASS)
NO_EAGER: Final = "No eager arm ran: there is nothing sound to hold the others against."
Finding = tuple[Outcome, str]


@dataclass(frozen=True, slots=True)
class Context:
    """What a task is judged by, besides its own figures. `reference` is the arm the others are held against.

    `across_runs`: the arms are one arm of two runs, of which only "no regression" is asked. That a run's own answers
    are cut by the token limit is told by its own verdict.
    """

    arms: tuple[ArmSummary, ...]
    reference: str | None
    evidence: Mapping[str, ArmEvidence]
    policy: Policy
    early_stop: bool = False
    across_runs: bool = False

    @property
    def has_eager(self) -> bool:
        """Whether the reference arm ran without graphs, so that no capture path can have spoiled it."""
        return any(arm.name == self.reference and arm.capture == "eager" for arm in self.arms)

    def of_capture(self, *captures: str) -> list[ArmSummary]:
        """The deciding arms of these capture paths."""
        return [arm for arm in self.deciding if arm.capture in captures]

    @property
    def deciding(self) -> list[ArmSummary]:
        """The arms that the verdict is about: no second run of an arm, no number of requests at a time beside all."""
        names = deciding(arm.name for arm in self.arms)
        return [arm for arm in self.arms if arm.name in names]

    @property
    def stock(self) -> list[ArmSummary]:
        """The arms that are to show the fault; none of them in a comparison of two runs."""
        return [] if self.across_runs else self.of_capture("stock")


def judge_task(task: TaskComparison, context: Context) -> Verdict:
    """Answer the questions that this task's arms can answer.

    What blocks an answer (lost answers, missing evidence, too few answers) decides before the answers do; the
    questions are shown all the same.
    """
    questions = tuple(_questions(task, context))
    blockers = [finding for check in BLOCKERS for finding in check(task, context)]
    if blockers:
        outcome = worst(outcome for outcome, _ in blockers)
        return Verdict(outcome, tuple(reason for _, reason in blockers), questions)
    if not questions:
        return Verdict(Outcome.INCONCLUSIVE, ("Only one arm ran: there is nothing to compare it with.",))
    outcome = worst(_meaning(question, context.policy) for question in questions)
    return Verdict(outcome, tuple(_sentence(question) for question in questions), questions)


def judge_run(tasks: tuple[TaskComparison, ...], arms: tuple[ArmSummary, ...] = ()) -> Verdict:
    """The worst of the tasks' verdicts, with the reasons of the tasks that have it; without any, what `arms` tell."""
    if not tasks:
        told = tuple(f"Arm {arm.name}: {arm.message.removeprefix(f'Arm {arm.name}: ')}" for arm in arms if arm.message)
        refused = bool(told) and all(arm.state is ArmState.INVALID for arm in arms if arm.message)
        return Verdict(Outcome.INVALID if refused else Outcome.ERROR, ("No task has an answer yet.", *told))
    outcome = worst(task.verdict.outcome for task in tasks)
    reasons = (f"{t.task}: {reason}" for t in tasks if t.verdict.outcome is outcome for reason in t.verdict.reasons)
    return Verdict(outcome, tuple(reasons))


def arm_outcome(score: ArmScore, task: TaskComparison, context: Context) -> Outcome | None:
    """PASS, FAIL or INCONCLUSIVE for one arm against the reference arm; None for the reference itself."""
    if context.reference is None or score.arm == context.reference:
        return None
    answer, _ = _holds(task, score.arm, context)
    return {Answer.YES: Outcome.PASS, Answer.NO: Outcome.FAIL}.get(answer, Outcome.INCONCLUSIVE)


def worst(outcomes: Iterator[Outcome]) -> Outcome:
    """The outcome that decides over the others."""
    return min(outcomes, key=WORST_FIRST.index)


def _meaning(question: Question, policy: Policy) -> Outcome:
    """What an answer makes of the run. A fault that did not show leaves the fix untested, not failed."""
    if question.name == "as_published" and policy.on_published == "report":
        return Outcome.PASS
    if question.answer is Answer.NO:
        return Outcome.INVALID if question.name == "reproduced" else Outcome.FAIL
    return Outcome.PASS if question.answer is Answer.YES else Outcome.INCONCLUSIVE


# --- the questions ---------------------------------------------------------------------------------------


def _questions(task: TaskComparison, context: Context) -> Iterator[Question]:
    stock, patched = context.stock, context.of_capture("patched")
    if context.reference is None:
        return
    if stock:
        yield from (_reproduced(task, arm.name, context) for arm in stock)
        yield from (_recovered(task, arm.name, stock, context) for arm in patched)
        if not patched:
            yield Question("recovered", Answer.UNDECIDED, ("No patched arm ran: recovery was not tested.",))
    others = [arm for arm in context.deciding if arm.name != context.reference]
    asked = [arm for arm in others if not stock or arm.capture == "native"]
    yield from (_no_regression(task, arm.name, context) for arm in asked)
    if any(figure.inside is not None for figure in task.published):
        yield _as_published(task)


def _reproduced(task: TaskComparison, stock: str, context: Context) -> Question:
    """Is stock worse than eager, by more than two runs of one arm differ?"""
    if not context.has_eager:
        return Question("reproduced", Answer.UNDECIDED, (NO_EAGER,))
    found = task.contrast(stock, context.reference or "")
    if found is None or found.difference is None:
        return Question("reproduced", Answer.UNDECIDED, (f"{stock} and {context.reference} share no scored answer.",))
    floor, p = _floor(task), _adjusted(found.p_worse_holm, found.p_worse)
    words = f"{_versus(task, stock, found)} (p {_p(p)})"
    if p >= context.policy.alpha:
        return Question("reproduced", Answer.NO, (f"{words}; the fix was not tested.", *_by_tokens(task, stock)))
    if -found.difference <= floor:
        return Question("reproduced", Answer.NO, (f"{words} lies inside the A/A noise of {floor:.3f}.",))
    return Question("reproduced", Answer.YES, (f"{words}.",))


def _by_tokens(task: TaskComparison, arm: str) -> Iterator[str]:
    """Where scores are alike, whether the answers were: a model may be too weak at a task to lose anything."""
    score = task.score(arm)
    found = score.agreement if score else None
    if found is not None and found.tokens is not None and found.tokens < 1:
        yield f"Its answers do differ: {found.tokens:.3f} of tokens agree with {found.reference}."


def _recovered(task: TaskComparison, patched: str, stock: list[ArmSummary], context: Context) -> Question:
    """Is patched better than stock, and not worse than the reference by more than the margin?"""
    answer, reasons = _holds(task, patched, context)
    for arm in stock:
        found = task.contrast(patched, arm.name)
        p = _adjusted(found.p_better_holm, found.p_better) if found else 1.0
        if p < context.policy.alpha:
            reasons.insert(0, f"{patched} is better than {arm.name} (p {_p(p)}).")
        else:
            reasons.insert(0, f"{patched} is not shown to be better than {arm.name} (p {_p(p)}).")
            answer = Answer.UNDECIDED if answer is Answer.YES else answer
    return Question("recovered", answer, tuple(reasons))


def _no_regression(task: TaskComparison, arm: str, context: Context) -> Question:
    answer, reasons = _holds(task, arm, context)
    return Question("no_regression", answer, tuple(reasons))


def _as_published(task: TaskComparison) -> Question:
    """Does every arm's interval hold the published figure?"""
    tested = [figure for figure in task.published if figure.inside is not None]
    reasons = tuple(
        f"{f.arm}: {f.measured:.3f} {'agrees with' if f.inside else 'contradicts'} the published {f.published:.3f}."
        for f in tested
        if f.measured is not None
    )
    answer = Answer.YES if all(figure.inside for figure in tested) else Answer.NO
    return Question("as_published", answer, reasons)


def _holds(task: TaskComparison, arm: str, context: Context) -> tuple[Answer, list[str]]:
    """Does `arm` hold the reference's accuracy, length and soundness? NO beats UNDECIDED beats YES."""
    if context.stock and not context.has_eager:
        return Answer.UNDECIDED, [NO_EAGER]
    score = task.score(arm)
    found = task.contrast(arm, context.reference or "")
    if score is None or found is None or found.difference is None:
        return Answer.UNDECIDED, [f"{arm} and {context.reference} share no scored answer."]
    checks = [_accuracy(task, arm, found, context.policy), *_output(score, context)]
    order = (Answer.NO, Answer.UNDECIDED, Answer.YES)
    return min((answer for answer, _ in checks), key=order.index), [reason for _, reason in checks]


def _accuracy(task: TaskComparison, arm: str, found: Contrast, policy: Policy) -> tuple[Answer, str]:
    """Non-inferior: YES. Significantly worse beyond the noise floor: NO. Neither: the n is too small."""
    words, floor = _versus(task, arm, found), _floor(task)
    p_worse = _adjusted(found.p_worse_holm, found.p_worse)
    if found.margin is None or found.p_non_inferior is None:
        return Answer.UNDECIDED, f"{words}; no margin applies to {found.documents} documents."
    if found.p_non_inferior <= policy.alpha:
        return Answer.YES, f"{words}: not worse by {found.margin:.3f} (p {_p(found.p_non_inferior)})."
    if p_worse >= policy.alpha:
        return Answer.UNDECIDED, f"{words}: too few samples to rule out a loss of {found.margin:.3f}."
    if found.difference is not None and -found.difference <= floor:
        return Answer.UNDECIDED, f"{words}: the loss lies inside the A/A noise of {floor:.3f}."
    return Answer.NO, f"{words}: worse (p {_p(p_worse)})."


def _output(score: ArmScore, context: Context) -> Iterator[tuple[Answer, str]]:
    """Length and degeneration; silent while they are in order."""
    low, high = context.policy.length_band
    ratio, around = score.length_ratio, score.length_interval
    if ratio is not None and around is not None and not low <= ratio <= high:
        sure = around.high < low or around.low > high
        words = f"{score.arm} writes {ratio:.2f} times the tokens of {context.reference} (allowed {low:g}-{high:g})"
        yield (Answer.NO, f"{words}.") if sure else (Answer.UNDECIDED, f"{words}, within chance.")
    limit, excess = context.policy.max_degenerate, score.degenerate_excess
    if excess is not None and excess.low > limit:
        yield Answer.NO, f"{score.arm}: {score.degenerate} of {score.n} answers loop, are empty or drift."


# --- what stands in the way ------------------------------------------------------------------------------


def _infrastructure(task: TaskComparison, context: Context) -> Iterator[Finding]:
    for arm in context.arms:
        if arm.state is ArmState.FAILED:
            yield Outcome.ERROR, f"Arm {arm.name} failed: {arm.message or 'no message was kept'}."
    for score in task.scores:
        if score.errors and _short(score, context.policy):
            yield Outcome.ERROR, f"{score.errors} of {score.asked} answers of {score.arm} were lost to infrastructure."


def _incomplete(task: TaskComparison, context: Context) -> Iterator[Finding]:
    for score in task.scores:
        missing = score.asked - score.n - score.errors
        if missing and _short(score, context.policy):
            yield Outcome.INCONCLUSIVE, f"{missing} of {score.asked} questions were not answered by {score.arm}."
    for arm in context.arms:
        if arm.state in {ArmState.PENDING, ArmState.RUNNING} or task.score(arm.name) is None:
            yield Outcome.INCONCLUSIVE, f"Arm {arm.name} has not finished; resume the run."
    if context.early_stop and not context.policy.allow_early_stop:
        yield Outcome.INCONCLUSIVE, "An arm was stopped early, which this policy does not allow."


def _evidence(_task: TaskComparison, context: Context) -> Iterator[Finding]:
    for arm in context.arms:
        if arm.state is ArmState.INVALID:
            yield Outcome.INVALID, f"Arm {arm.name}: {arm.message or 'it did not run the path it names.'}"
        elif arm.state is ArmState.DONE:  # the proof of an unfinished arm is not all there yet
            faults = evidence_faults(arm, context.evidence.get(arm.name), context.policy.required_evidence)
            yield from ((Outcome.INVALID, fault) for fault in faults)


def _token_cap(task: TaskComparison, context: Context) -> Iterator[Finding]:
    """Only the reference arm's truncation says that the limit is too low; in another arm it is a symptom."""
    score = None if context.across_runs else task.score(context.reference or "")
    if score is not None and score.n and score.truncated / score.n > context.policy.max_truncated:
        yield Outcome.INCONCLUSIVE, f"{score.truncated} of {score.n} hit token cap ({score.arm}); raise max_tokens."


def _refused_margin(task: TaskComparison, context: Context) -> Iterator[Finding]:
    if task.documents and len(task.scores) > 1:
        margin, note = context.policy.task(task.task).margin_for(task.documents, task.repeats)
        if margin is None:
            yield Outcome.INCONCLUSIVE, f"Too few samples: {note}."


BLOCKERS: Final[tuple[Callable[[TaskComparison, Context], Iterator[Finding]], ...]] = (
    _infrastructure,
    _evidence,
    _incomplete,
    _token_cap,
    _refused_margin,
)


# --- words -----------------------------------------------------------------------------------------------


def _sentence(question: Question) -> str:
    return f"{question.name.replace('_', ' ')}: {question.answer.value}. {' '.join(question.reasons)}"


def _short(score: ArmScore, policy: Policy) -> bool:
    return score.coverage is None or score.coverage < policy.coverage


def _floor(task: TaskComparison) -> float:
    return max((noise.floor for noise in task.noise), default=0.0)


def _adjusted(adjusted: float | None, raw: float | None) -> float:
    """The adjusted p value, the raw one where none was adjusted, 1 where none was tested."""
    return next((p for p in (adjusted, raw) if p is not None), 1.0)


def _versus(task: TaskComparison, arm: str, found: Contrast) -> str:
    mine, other = task.score(arm), task.score(found.baseline)
    return f"{arm} {_value(mine)} against {found.baseline} {_value(other)}"


def _value(score: ArmScore | None) -> str:
    return "-" if score is None or score.value is None else f"{score.value:.3f}"


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}" if p > 0 else "< 1e-300"
