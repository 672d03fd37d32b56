"""Turns what a user typed into a spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.arms import base_name
from evalharness.errors import SpecError, UnknownName
from evalharness.runner.doctor import can_serve_vllm
from evalharness.spec import ArmSpec, RunSpec, load_spec, parse_spec


@dataclass(frozen=True, slots=True)
class Choice:
    """The arguments of `run`; empty means "as the profile says"."""

    reference: str | None = None
    arms: str = ""
    arm: tuple[str, ...] = ()
    tasks: str = ""
    limit: int | None = None
    data: Path | None = None
    settings: tuple[str, ...] = ()
    stop_early: bool = False
    concurrency: str = ""


def default_profile(choice: Choice = Choice()) -> tuple[str, str]:
    """The profile that fits `choice` and this machine, and why."""
    if any("=" in arm for arm in choice.arm):
        return "endpoint", "arms are URLs of running servers"
    able, reason = can_serve_vllm()
    return ("canary-v3-gpu" if able else "canary-v3"), reason


def resolve(choice: Choice, reference: str) -> RunSpec:
    """Load `reference` and apply the choice's options.

    Raises:
        UnknownName: an arm or a task that the spec does not have.
        SpecError: a limit below 1 or a data folder that is not there.
        EngineError: the first server of an endpoint run cannot be asked for its model.
    """
    spec = load_spec(reference, choice.settings)
    raw: dict[str, Any] = spec.model_dump(mode="json")
    arms = (*_names(choice.arms), *choice.arm)
    if arms:
        raw["arms"] = [chosen_arm(spec, text).model_dump(mode="json") for text in arms]
    if choice.concurrency:
        raw["arms"] = _spread(raw["arms"], choice.concurrency)
    if choice.tasks:
        raw["tasks"] = _chosen(raw["tasks"], _names(choice.tasks))
    if choice.limit is not None:
        raw["tasks"] = [{**task, "limit": choice.limit} for task in raw["tasks"]]
    if choice.data is not None:
        raw["data_dir"] = str(_folder(choice.data))
    raw["stop_early"] = raw["stop_early"] or choice.stop_early
    return _with_model(parse_spec(raw))


def chosen_arm(spec: RunSpec, text: str) -> ArmSpec:
    """The spec's own arm called `text`, with all that it is set to; else what `text` says (ArmSpec.parse)."""
    return next((arm for arm in spec.arms if arm.name == text), None) or ArmSpec.parse(text)


def _with_model(spec: RunSpec) -> RunSpec:
    """A spec of servers without a model's name gets the served one: records and reports name what they measured."""
    if spec.engine.kind != "endpoint" or spec.engine.model:
        return spec
    from evalharness.engines.endpoint import served_model

    return parse_spec({**spec.model_dump(), "engine": {**spec.engine.model_dump(), "model": served_model(spec)}})


def _chosen(tasks: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Tasks by name: with the profile's settings where it has the task, with the task's own otherwise."""
    from evalharness.scoring.tasks import task_names

    by_name = {task["name"]: task for task in tasks}
    known = {*by_name, *task_names()}
    for name in names:
        if name not in known:
            raise UnknownName("task", name, known)
    return [by_name.get(name, {"name": name}) for name in names]


def _spread(arms: Sequence[dict[str, Any]], numbers: str) -> list[dict[str, Any]]:
    """Every arm, and after it the same arm with each number of requests at a time: `patched`, `patched@1`, ..."""
    for number in _names(numbers):
        if not (number.isascii() and number.isdigit() and int(number)):
            raise SpecError(f"--concurrency {numbers!r} is not a list of numbers.", "Write for example 1,8,32.")
    spread = []
    for arm in arms:
        plain = base_name(arm["name"]) == arm["name"]
        paces = [int(number) for number in _names(numbers)] if plain else []
        spread += [arm, *({**arm, "name": f"{arm['name']}@{pace}"} for pace in paces)]
    return spread


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise SpecError(f"Data folder {path} is not there.", "Give a folder with gsm8k/ and aime25/, see README.")
    return path
