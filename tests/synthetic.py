"""Whole runs made up from a seed: samples, evidence and run record of arms with known accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evalharness.arms import base_name
from evalharness.compare import compare
from evalharness.policy import Policy, load_policy
from evalharness.records import (
    ArmEvidence,
    ArmState,
    ArmSummary,
    Cause,
    Comparison,
    DescriptorEvidence,
    Run,
    Sample,
)
from tests.factories import make_run, make_sample

Arms = dict[str, list[Sample]]


def answers(
    arm: str, right: Sequence[int] | np.ndarray, repeats: int = 1, task: str = "gsm8k_canary", **changes: Any
) -> list[Sample]:
    """One sample a score; wrong ones differ from the right ones at token 3."""
    samples = []
    for row, score in enumerate(np.asarray(right).tolist()):
        document, repeat = divmod(row, repeats)
        tokens = (5, 6, 7, 8, 9) if score else (5, 6, 7, 1, 1)
        fields: dict[str, Any] = {
            "task": task,
            "arm": arm,
            "doc_id": document,
            "doc_hash": f"{document:064x}",
            "repeat": repeat,
            "prompt_hash": f"p{document}",
            "response": f"answer {score}",
            "token_ids": tokens,
            "output_tokens": len(tokens),
            "scores": {"exact_match": float(score), "robust": float(score)},
            "cause": Cause.CORRECT if score else Cause.WRONG,
        }
        samples.append(make_sample(**{**fields, **changes}))
    return samples


def lost(sample: Sample) -> Sample:
    """The sample as it looks when infrastructure lost it."""
    kept = {name: getattr(sample, name) for name in ("task", "arm", "doc_id", "doc_hash", "repeat", "prompt_hash")}
    gone: dict[str, Any] = {"response": "", "token_ids": (), "output_tokens": 0, "scores": {}, "cause": Cause.ERROR}
    return make_sample(**kept, **gone, finish_reason="error", error="connection reset")


def proof(arm: str, **changes: Any) -> ArmEvidence:
    """Evidence of an arm that ran what it names."""
    capture = base_name(arm)
    settings = {"runner": "v2", "capture_path": capture}
    graphs = capture != "eager"
    shared = {"stock": True, "patched": False}.get(capture)
    fields: dict[str, Any] = {
        "arm": arm,
        "engine": "emulated",
        "engine_version": "1",
        "requested": settings,
        "observed": settings,
        "descriptors": (DescriptorEvidence("FULL 8", 8, shared),) if graphs else (),
        "full_replays": 100 if graphs else 0,
        "eager_steps": 0 if graphs else 100,
    }
    return ArmEvidence(**{**fields, **changes})


def run_of(arms: Sequence[str], captures: Mapping[str, str] | None = None, **spec: Any) -> Run:
    """A finished run of these arms."""
    named = {arm: (captures or {}).get(arm, base_name(arm)) for arm in arms}
    summaries = tuple(ArmSummary(arm, capture, ArmState.DONE) for arm, capture in named.items())
    engine = {"kind": "emulated", "model": "canary-v3"}
    return make_run({"engine": engine, "seed": 1, **spec}, arms=summaries, run_id="20261201T120000Z-test-abababab")


def judge(
    samples: Mapping[str, Mapping[str, Sequence[Sample]]],
    evidence: Mapping[str, ArmEvidence] | None = None,
    policy: Policy | None = None,
    run: Run | None = None,
    **spec: Any,
) -> Comparison:
    """Compare `samples` (task -> arm -> answers) as a finished run with proper evidence."""
    arms = list(dict.fromkeys(arm for of_task in samples.values() for arm in of_task))
    proofs = {arm: proof(arm) for arm in arms} if evidence is None else evidence
    return compare(run or run_of(arms, **spec), samples, proofs, policy or load_policy())


def faulty_release(n: int = 250, seed: int = 0) -> dict[str, Arms]:
    """Both canary tasks as the fault of vLLM #42444 leaves them: stock broken, patched as eager."""
    rng = np.random.default_rng(seed)
    good, hard = rng.random(n) < 0.96, np.repeat(rng.random(30), 4) + rng.random(120) * 0.2 > 0.15
    return {
        "gsm8k_canary": {
            "eager": answers("eager", good),
            "stock": answers("stock", good & (rng.random(n) < 0.05)),
            "patched": answers("patched", good),
        },
        "aime25_canary": {
            "eager": answers("eager", hard, 4, "aime25_canary"),
            "stock": answers("stock", np.zeros(120), 4, "aime25_canary"),
            "patched": answers("patched", hard, 4, "aime25_canary"),
        },
    }
