"""The domain in one file: what a run saves and what its stages hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1


class Cause(StrEnum):
    """Why a sample scored as it did; ERROR (infrastructure) is never counted as a wrong answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    LOOP = "loop"
    NOT_EXTRACTED = "not_extracted"
    ERROR = "error"


class Outcome(StrEnum):
    """The verdict words of a task and of a run."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    ERROR = "ERROR"

    @property
    def exit_code(self) -> int:
        """Process exit code of the verdict; 2 is left to usage errors."""
        return {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4, "ERROR": 5}[self.value]


class ArmState(StrEnum):
    """How far an arm of a run got."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: (task, document, repeat, arm).

    `seconds` is the wall time from submission to the last token. `scores` maps a metric or extractor
    name to 0..1; `extracted` maps an extractor to what it read out of `response` (None: nothing).
    `token_ids` has `output_tokens` entries, or none where the engine cannot tell them. `flags` are
    degeneration findings (`loop`, `empty`, `truncated`, `alphabet_drift`).
    """

    task: str
    arm: str
    doc_id: int
    doc_hash: str
    repeat: int
    seed: int
    prompt_hash: str
    response: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    seconds: float
    target: str
    scores: Mapping[str, float]
    cause: Cause
    extracted: Mapping[str, str | None] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    reasoning: str = ""
    error: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def key(self) -> tuple[str, int, int]:
        """What pairs this sample with the other arms' answers to the same question."""
        return (self.doc_hash, self.doc_id, self.repeat)


@dataclass(frozen=True, slots=True)
class DescriptorEvidence:
    """How one batch descriptor was captured.

    `shared` - warm-up and capture used one attention state object; `changed` - attribute paths the
    warm-up call changed; `plan_recorded` - the planning kernel is a node of the captured graph.
    None means "not observable".
    """

    descriptor: str
    num_tokens: int
    shared: bool | None
    changed: tuple[str, ...] = ()
    plan_recorded: bool | None = None
    factory_calls: int = 0


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """What proves that an arm ran the path it names. `requested` and `observed` share their keys
    (`runner`, `cudagraph_mode`, `attention_backend`, `capture_path`)."""

    arm: str
    engine: str
    engine_version: str
    requested: Mapping[str, str]
    observed: Mapping[str, str]
    descriptors: tuple[DescriptorEvidence, ...] = ()
    full_replays: int = 0
    eager_steps: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def mismatches(self) -> tuple[str, ...]:
        """Settings whose observed value is not the requested one."""
        return tuple(k for k, want in self.requested.items() if self.observed.get(k) != want)


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """State of one arm in run.json; `message` says why it failed."""

    name: str
    capture: str
    state: ArmState
    samples: int = 0
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """run.json: everything about a run but its samples. Times are UTC ISO 8601, timings seconds.

    `identity` names what decides the answers, hash by hash; `fingerprint` is the hash of it.
    """

    run_id: str
    name: str
    created: str
    fingerprint: str
    identity: Mapping[str, str]
    spec: Mapping[str, Any]
    provenance: Mapping[str, Any]
    arms: tuple[ArmSummary, ...]
    timings: Mapping[str, float] = field(default_factory=dict)
    finished: str | None = None
    schema_version: int = SCHEMA_VERSION
