"""The gate policy: what an arm must show to pass, as YAML in policies/ or in a file of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from evalharness import strict_yaml
from evalharness.errors import SpecError, UnknownName, first_fault
from evalharness.spec import Part

Proof = Literal["settings", "replays", "capture_state"]


class TaskPolicy(Part):
    """What one task must show.

    `margin` is the largest true loss of accuracy that still counts as "not worse". It was chosen for
    `documents` x `repeats` answers; a smaller run is judged with a margin widened by sqrt(documents / n), up
    to `widest_margin`, or refused, as `other_n` says. `discordance` is the share of answers that noise alone is
    assumed to flip (another batch shape in bf16; a sampled answer drawn anew) where no A/A pair measured it.
    """

    margin: float = Field(gt=0, lt=1)
    documents: int = Field(ge=2)
    repeats: int = Field(default=1, ge=1)
    discordance: float = Field(default=0.04, gt=0, lt=0.5)
    other_n: Literal["widen", "refuse"] = "widen"
    widest_margin: float = Field(default=0.15, gt=0, lt=1)
    published: Mapping[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _margins_in_order(self) -> TaskPolicy:
        if self.widest_margin < self.margin:
            raise ValueError("widest_margin is smaller than margin")
        return self

    def margin_for(self, documents: int, repeats: int) -> tuple[float | None, str]:
        """The margin at this n, and in words what became of the calibrated one (empty: it holds as it is).

        None: refused. Noise grows as one over the square root of documents, or of answers where fewer repeats
        ran; of the two the larger is taken.
        """
        shortfall = max(self.documents / documents, self.documents * self.repeats / (documents * repeats), 1.0)
        if shortfall == 1.0:
            return self.margin, ""
        wanted = self.margin * shortfall**0.5
        ran = f"calibrated for {_size(self.documents, self.repeats)}, {_size(documents, repeats)} ran"
        if self.other_n == "refuse" or wanted > self.widest_margin:
            limit = "the policy refuses another n" if self.other_n == "refuse" else f"at most {self.widest_margin:.3f}"
            return None, f"margin {self.margin:.3f} is {ran}; {wanted:.3f} would be needed: refused ({limit})"
        return wanted, f"margin widened from {self.margin:.3f} to {wanted:.3f}: {ran}"


def _size(documents: int, repeats: int) -> str:
    return f"{documents}x{repeats}" if repeats > 1 else str(documents)


class Policy(Part):
    """The whole gate. Shares are 0..1.

    `alpha` is the one-sided level of every test, `level` that of the intervals shown. `coverage` is the least
    share of questions answered in every arm; `length_band` bounds mean output tokens over the reference
    arm's; `max_degenerate` the excess of degenerate answers over the reference arm's; `max_truncated` the
    share of the reference arm's answers that may be lost to the token limit before a task says nothing.
    `required_evidence` names what every arm must prove: its settings as observed, replays of full graphs, and
    the state its captures used. `on_published` says whether missing a published figure fails the run.
    """

    name: str
    description: str = ""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    level: float = Field(default=0.95, gt=0.5, lt=1)
    coverage: float = Field(default=1.0, ge=0, le=1)
    length_band: tuple[float, float] = (0.9, 1.1)
    max_degenerate: float = Field(default=0.02, ge=0, le=1)
    max_truncated: float = Field(default=0.1, ge=0, le=1)
    required_evidence: tuple[Proof, ...] = ("settings", "replays", "capture_state")
    on_published: Literal["fail", "report"] = "fail"
    allow_early_stop: bool = False
    default: TaskPolicy
    tasks: Mapping[str, TaskPolicy] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _band_holds_one(self) -> Policy:
        low, high = self.length_band
        if not 0 < low <= 1 <= high:
            raise ValueError("length_band must hold 1, as in [0.9, 1.1]")
        return self

    def task(self, name: str) -> TaskPolicy:
        """The policy of task `name`, or the default one."""
        return self.tasks.get(name, self.default)


def policies() -> list[str]:
    """Names of the policies that ship with the package."""
    files = resources.files("evalharness").joinpath("policies").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_policy(reference: str = "default") -> Policy:
    """Load a shipped policy by name, or one from a YAML file.

    Raises:
        UnknownName: neither a shipped policy nor a file.
        SpecError: not YAML, an unknown key or a value out of range.
    """
    if reference.endswith((".yaml", ".yml")):
        return _parse(_file_text(Path(reference)), reference)
    if reference not in policies():
        raise UnknownName("policy", reference, policies())
    text = resources.files("evalharness").joinpath("policies", f"{reference}.yaml").read_text(encoding="utf-8")
    return _parse(text, reference)


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"Cannot read policy {path}: {error}.", "Name a shipped policy or an existing file.") from error


def _parse(text: str, where: str) -> Policy:
    try:
        raw: Any = strict_yaml.load(text)
        return Policy.model_validate(raw)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise SpecError(f"Policy {where} is not valid YAML: {said}.", "Correct the line it names.") from error
    except ValidationError as error:
        key, fault = first_fault(error)
        raise SpecError(f"Policy {where}, {key or 'policy'}: {fault}.", "Correct it in the policy file.") from error
