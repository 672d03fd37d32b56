"""Small records for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalharness.records import ArmState, ArmSummary, Cause, Run, Sample


def make_sample(**changes: Any) -> Sample:
    """A correct gsm8k_canary sample of the eager arm; any field may be changed."""
    fields: dict[str, Any] = {
        "task": "gsm8k_canary",
        "arm": "eager",
        "doc_id": 0,
        "doc_hash": "d0",
        "repeat": 0,
        "seed": 1,
        "prompt_hash": "p0",
        "response": "1+1=2\n#### 2",
        "token_ids": (1, 2, 3),
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "output_tokens": 3,
        "seconds": 0.5,
        "target": "2",
        "scores": {"exact_match": 1.0},
        "cause": Cause.CORRECT,
    }
    return Sample(**{**fields, **changes})


def make_run(spec: Mapping[str, Any] | None = None, **changes: Any) -> Run:
    """A run of three arms that has just begun."""
    fields: dict[str, Any] = {
        "run_id": "",
        "name": "test",
        "created": "2026-12-01T12:00:00+00:00",
        "fingerprint": "ab" * 32,
        "identity": {"model": "m"},
        "spec": spec or {},
        "provenance": {},
        "arms": tuple(ArmSummary(name, name, ArmState.PENDING) for name in ("eager", "stock", "patched")),
    }
    return Run(**{**fields, **changes})
