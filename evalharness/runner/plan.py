"""What a spec comes to: its questions, and the identity that decides their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evalharness.canary.models import local_model, model_hash
from evalharness.errors import RecordError
from evalharness.provenance import fingerprint, sha256_text
from evalharness.runner.early import Rule
from evalharness.scoring.budget import budget_warnings, check_budget, estimate_tokens
from evalharness.scoring.tasks import PreparedTask, prepare
from evalharness.spec import RunSpec

# Engine settings that change how long a run takes, not what it answers.
UNDECISIVE = {"start_timeout_s", "stall_timeout_s", "timeout_s", "max_retries", "api_key_env"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A spec with its tasks prepared; every arm is asked the same items. `rule` says when one may end early."""

    spec: RunSpec
    tasks: tuple[PreparedTask, ...]
    identity: Mapping[str, str]
    rule: Rule | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of the identity."""
        return fingerprint(self.identity)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on settings that are allowed but rarely meant."""
        return budget_warnings(self.tasks)

    @property
    def samples_per_arm(self) -> int:
        """Answers an arm owes."""
        return sum(len(task.items) for task in self.tasks)


def make_plan(spec: RunSpec) -> Plan:
    """Prepare the tasks of `spec`.

    Raises:
        DataError: evaluation data is missing or is not what its hash names.
        SpecError: a prompt and its new tokens exceed the model's context, or arms may not end early.
    """
    rule = Rule.of(spec)
    tasks = prepare(spec)
    context = getattr(spec.engine, "max_model_len", None)
    if context is not None:
        check_budget(tasks, context, _token_counter(spec.engine.model))
    return Plan(spec, tasks, _identity(spec, tasks), rule)


def refuse_mixing(recorded: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise RecordError naming what changed since a run began, if anything did."""
    changed = sorted(key for key in recorded.keys() | now.keys() if recorded.get(key) != now.get(key))
    if changed:
        raise RecordError(
            f"The run cannot be resumed: {', '.join(changed)} changed since it began.",
            "Restore what changed, or start a new run.",
        )


def _identity(spec: RunSpec, tasks: Sequence[PreparedTask]) -> dict[str, str]:
    engine = spec.engine.model_dump(mode="json", exclude=UNDECISIVE)
    parts = {"engine": json.dumps(engine, sort_keys=True), "seed": str(spec.seed)}
    model = model_hash(spec.engine.model)
    if model is not None:
        parts["model"] = model
    for task in tasks:
        parts[f"task {task.name}: data"] = task.data_sha256
        parts[f"task {task.name}: questions"] = sha256_text(*(_question(item) for item in task.items))
    return parts


def _token_counter(model: str) -> Callable[[str], int]:
    """Tokens of a text by the model's own tokenizer where it is at hand, estimated otherwise."""
    from tokenizers import Tokenizer

    folder = local_model(model)
    if folder is None or not (folder / "tokenizer.json").exists():
        return estimate_tokens
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text).ids)


def _question(item: object) -> str:
    names = ("doc_hash", "repeat", "seed", "prompt_hash", "max_tokens", "temperature", "top_p", "stop")
    return json.dumps([getattr(item, name) for name in names])
