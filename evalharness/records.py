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
    """How far an arm of a run got; FAILED is infrastructure, INVALID ran another path than it names."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INVALID = "invalid"


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

    `shared` - warm-up and capture used one attention state object; `changed` - attribute paths the warm-up call
    changed; `plan_recorded` - the planning kernel is a node of the captured graph. None: not observable.
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


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval; `method` names the estimator."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True, slots=True)
class MetricScore:
    """A secondary metric of an arm (`robust`, `pass@k`, ...). `value` is None when nothing was scored."""

    metric: str
    n: int
    value: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far an arm's answers follow the reference arm's, token by token.

    `tokens` is the share of tokens before the first divergence (of the longer answer of each pair, pooled),
    None where the engine tells no token ids. `identical` is the share of answers that are the same
    throughout. `first` is (least, median, greatest) index of the first differing token among the answers
    that differ.
    """

    reference: str
    pairs: int
    tokens: float | None
    identical: float | None
    first: tuple[int, float, int] | None = None


@dataclass(frozen=True, slots=True)
class ArmScore:
    """One arm on one task.

    `n` answers of `documents` documents were scored out of `asked` (their quotient is `coverage`); `errors`
    were lost to infrastructure. `causes` counts every answer, `lost` is the accuracy each cause costs (they
    add up to 1 - value). `truncated` counts answers without credit that hit the token limit, `degenerate`
    those that loop, are empty or drift in alphabet. `length_ratio` is mean output tokens over the reference
    arm's. `outcome` judges the arm against the reference arm; the last two intervals are one-sided at alpha.
    """

    arm: str
    capture: str
    n: int
    documents: int
    asked: int
    coverage: float | None
    value: float | None
    interval: Interval | None
    errors: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    truncated: int = 0
    degenerate: int = 0
    output_tokens: float | None = None
    length_ratio: float | None = None
    length_interval: Interval | None = None
    degenerate_excess: Interval | None = None
    seconds: float | None = None
    agreement: Agreement | None = None
    secondary: tuple[MetricScore, ...] = ()
    disagreements: int = 0
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """A question two arms answered with different scores; `first_divergence` is a token index."""

    doc_id: int
    doc_hash: str
    repeat: int
    baseline_score: float
    score: float
    first_divergence: int | None = None


@dataclass(frozen=True, slots=True)
class Contrast:
    """`arm` minus `baseline` on the questions both answered.

    `gains` and `losses` count questions whose score rose or fell. `second_interval` is another estimator's, to
    check by. P values are one-sided; `*_holm` are adjusted over the tasks of the run. `p_non_inferior` tests
    "worse by `margin` or more". `detectable` is the smallest true loss this n finds with 80 % power, `p_unpaired`
    the unpaired z test, for reference. `unpaired` counts the questions only one arm answered, its first few
    examples are (arm, doc_id, repeat); `flips` lists the first of each direction. `agreement`: of one arm's paces.
    """

    arm: str
    baseline: str
    n: int
    documents: int
    difference: float | None
    interval: Interval | None
    gains: int
    losses: int
    test: str
    p_worse: float | None
    p_better: float | None
    p_two_sided: float | None
    p_worse_holm: float | None = None
    p_better_holm: float | None = None
    margin: float | None = None
    p_non_inferior: float | None = None
    second_interval: Interval | None = None
    detectable: float | None = None
    p_unpaired: float | None = None
    unpaired: Mapping[str, int] = field(default_factory=dict)
    unpaired_examples: tuple[tuple[str, int, int], ...] = ()
    flips: tuple[Flip, ...] = ()
    agreement: Agreement | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """(patched - stock) / (eager - stock); `value` None says in `reason` why it is undefined."""

    arm: str
    value: float | None
    interval: Interval | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What two runs of one arm differ by; `floor` is the largest difference noise of that size explains."""

    arms: tuple[str, str]
    difference: float
    flips: int
    identical: float | None
    floor: float


@dataclass(frozen=True, slots=True)
class GateRates:
    """Chances of the gate at this n: `false_alarm` fails, `withheld` neither passes nor fails an equal arm; `miss`
    passes a true loss of `loss`. `discordance` is the share of answers assumed to flip by noise alone."""

    documents: int
    repeats: int
    margin: float
    discordance: float
    false_alarm: float
    withheld: float
    loss: float
    miss: float
    method: str


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published figure beside the measured one. `counts` are the (right, asked) pairs it can come from;
    `inside` is None when it was not tested."""

    arm: str
    published: float
    measured: float | None
    inside: bool | None
    counts: tuple[tuple[int, int], ...] = ()


class Answer(StrEnum):
    """The answer to one of the gate's questions."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the gate (`reproduced`, `recovered`, `as_published`, `no_regression`) answered."""

    name: str
    answer: Answer
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome and why, in short sentences."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """One task: its arms, their differences, and its verdict. `metric` is `exact_match` or `avg@k`."""

    task: str
    metric: str
    repeats: int
    documents: int
    scores: tuple[ArmScore, ...]
    contrasts: tuple[Contrast, ...]
    verdict: Verdict
    recovery: tuple[Recovery, ...] = ()
    noise: tuple[NoiseFloor, ...] = ()
    rates: GateRates | None = None
    published: tuple[PublishedFigure, ...] = ()
    notes: tuple[str, ...] = ()

    def score(self, arm: str) -> ArmScore | None:
        """The score of `arm`, if it ran."""
        return next((score for score in self.scores if score.arm == arm), None)

    def contrast(self, arm: str, baseline: str) -> Contrast | None:
        """`arm` minus `baseline`, if both ran."""
        return next((c for c in self.contrasts if (c.arm, c.baseline) == (arm, baseline)), None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """comparison.json: the paired statistics and the verdict of a run. `published` quotes the spec's
    figures of tasks this run did not test them on. Times are UTC ISO 8601."""

    run_id: str
    name: str
    created: str
    engine: str
    model: str
    arms: tuple[str, ...]
    reference: str | None
    policy: str
    alpha: float
    level: float
    seed: int
    tasks: tuple[TaskComparison, ...]
    verdict: Verdict
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
