"""Is this build's capture state isolated? The answer from evidence and a few replays, without a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalharness.capture.paths import capture_path
from evalharness.records import ArmEvidence, Outcome

# Below this share of tokens, replays do not merely differ by rounding (another batch shape flips a token now and then).
AGREEMENT = 0.9
TOKENS = 32
PROMPTS = tuple(f"Continue this list of numbers: {', '.join(map(str, range(n)))}," for n in range(20, 161, 20))
Answers = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class AuditedPath:
    """One arm of an audit. `leaks` are attributes that the warm-up changed in a state the capture shares; `unseen`
    counts graphs whose state could not be observed; `agreement` is the share of tokens equal to eager's, position by
    position."""

    arm: str
    path: str
    descriptors: int
    unseen: int
    leaking: int
    leaks: tuple[str, ...]
    agreement: float
    full_replays: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found; `verdict` is one sentence, `outcome` its word and exit code."""

    model: str
    engine: str
    engine_version: str
    attention_backend: str
    outcome: Outcome
    verdict: str
    paths: tuple[AuditedPath, ...]


def judge(model: str, evidence: Mapping[str, ArmEvidence], answers: Mapping[str, Answers]) -> AuditReport:
    """Judge the build's own path, `native`, from every arm's evidence and its answers to PROMPTS."""
    eager = answers["eager"]
    paths = tuple(
        _audited(arm, proof, agreement(answers[arm], eager)) for arm, proof in evidence.items() if capture_path(arm)
    )
    own = evidence["native"]
    outcome, verdict = _verdict(next(path for path in paths if path.arm == "native"))
    return AuditReport(
        model, own.engine, own.engine_version, own.observed["attention_backend"], outcome, verdict, paths
    )


def agreement(answers: Answers, reference: Answers) -> float:
    """Share of positions with the reference's token, over the longer of each pair; 1 for nothing against nothing."""
    positions = [max(len(a), len(b)) for a, b in zip(answers, reference, strict=True)]
    same = [sum(x == y for x, y in zip(a, b, strict=False)) for a, b in zip(answers, reference, strict=True)]
    return sum(same) / sum(positions) if sum(positions) else 1.0


def render(report: AuditReport) -> str:
    """The report as plain text."""
    lines = [
        f"{report.model} on {report.engine} {report.engine_version}, {report.attention_backend}",
        f"{report.outcome.value}: {report.verdict}",
        "",
        f"{'arm':8} {'path':8} {'leaking graphs':>14} {'agrees with eager':>18} {'replays':>8}",
    ]
    lines += [
        f"{p.arm:8} {p.path:8} {f'{p.leaking}/{p.descriptors}':>14} {p.agreement:>18.3f} {p.full_replays:>8}"
        for p in report.paths
    ]
    return "\n".join(lines)


def _audited(arm: str, evidence: ArmEvidence, agrees: float) -> AuditedPath:
    leaking = [row for row in evidence.descriptors if row.shared and row.changed]
    return AuditedPath(
        arm=arm,
        path=evidence.observed["capture_path"],
        descriptors=len(evidence.descriptors),
        unseen=sum(row.shared is None for row in evidence.descriptors),
        leaking=len(leaking),
        leaks=leaking[0].changed if leaking else (),
        agreement=agrees,
        full_replays=evidence.full_replays,
    )


def _verdict(own: AuditedPath) -> tuple[Outcome, str]:
    if not own.full_replays:
        return (
            Outcome.INVALID,
            "no full graph was replayed; raise engine.capture_sizes or choose another cudagraph mode",
        )
    if own.leaks and own.agreement < AGREEMENT:
        return Outcome.FAIL, f"capture state leaks: {'; '.join(own.leaks)}"
    if own.leaks:
        return Outcome.FAIL, f"capture state leaks, though these replays agree with eager: {'; '.join(own.leaks)}"
    if own.unseen or not own.descriptors:
        seen = own.descriptors - own.unseen
        return (
            Outcome.INVALID,
            f"the state of {seen} of {own.descriptors} graphs was seen; nothing is proved of the rest",
        )
    if own.agreement < AGREEMENT:
        return (
            Outcome.INCONCLUSIVE,
            f"capture state is isolated, yet replays agree with eager on {own.agreement:.0%} of tokens only",
        )
    return Outcome.PASS, "capture state is isolated"
