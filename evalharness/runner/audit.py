"""Runs an audit: one engine, every capture path, a few answers each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evalharness.capture.audit import PROMPTS, TOKENS, AuditReport, judge
from evalharness.engines.base import Engine, Request, WritesLogs, create_engine
from evalharness.spec import CAPTURES, ArmSpec, RunSpec


def audit(spec: RunSpec, log_to: Callable[[str], Path] | None = None) -> AuditReport:
    """Audit the engine and model of `spec`; its arms and tasks are not used.

    Raises:
        EngineError: the engine cannot start or stopped.
        EvidenceError: it fell back to something that cannot be audited; names the setting.
    """
    engine = create_engine(spec.engine.kind)
    if log_to is not None and isinstance(engine, WritesLogs):
        engine.log_to(log_to)
    evidence, answers = {}, {}
    try:
        engine.open(spec)
        for capture in CAPTURES:
            engine.use(ArmSpec.parse(capture))
            answers[capture] = _answers(engine)
            evidence[capture] = engine.evidence()
    finally:
        engine.close()
    return judge(spec.engine.model, evidence, answers)


def _answers(engine: Engine) -> list[tuple[int, ...]]:
    requests = [Request(str(number), prompt, TOKENS) for number, prompt in enumerate(PROMPTS)]
    by_id = {done.request_id: done.token_ids for done in engine.generate(requests)}
    return [by_id[request.id] for request in requests]
