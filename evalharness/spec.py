"""What to run: the spec, its parts, and the profiles that ship with the package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evalharness import strict_yaml
from evalharness.arms import PATTERN, at_a_time, base_name
from evalharness.errors import SpecError, UnknownName

Capture = Literal["eager", "stock", "patched", "native"]
CAPTURES: Final[tuple[str, ...]] = get_args(Capture)
EXTRA: Final = "extra_forbidden"  # what pydantic calls an unknown key


def portable(path: Path) -> Path:
    """`path` with the home folder written `~`: a spec is recorded, and a record may be published."""
    home = Path.home()
    return Path("~") / path.relative_to(home) if path.is_relative_to(home) else path


def _portable_model(model: str) -> str:
    return str(portable(Path(model))) if model.startswith("/") else model


ModelName = Annotated[str, AfterValidator(_portable_model)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Part(BaseModel):
    """Base of every spec part: immutable, and a key nobody reads is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ArmSpec(Part):
    """One way of running the model. `eager#2` is a second, independent run of `eager` (an A/A pair), `patched@8` has at
    most 8 requests under way at a time.

    `only` confines what the stock path shares to the attribute of that name, to tell which one costs how much.
    """

    name: str = Field(pattern=PATTERN)
    capture: Capture
    url: str | None = None
    only: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")

    @field_validator("url")
    @classmethod
    def _is_a_plain_url(cls, value: str | None) -> str | None:
        """A URL is written into records: no key may hide in it."""
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound or not value.isprintable() or " " in value:
            raise ValueError("not a URL such as http://host:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("a URL must hold no user, password or query; name the key's variable: engine.api_key_env")
        return value

    @property
    def path(self) -> str:
        """The capture path in full: `stock`, `stock:tile_sched_c4a`."""
        return f"{self.capture}:{self.only}" if self.only else self.capture

    @model_validator(mode="before")
    @classmethod
    def _capture_from_name(cls, value: object) -> object:
        if not isinstance(value, Mapping) or "capture" in value or not isinstance(value.get("name"), str):
            return value
        capture = base_name(str(value["name"]))
        if capture not in CAPTURES:
            raise UnknownName("arm", str(value["name"]), CAPTURES)
        return {**value, "capture": capture}

    @classmethod
    def parse(cls, text: str) -> ArmSpec:
        """Read `stock`, `eager#2`, `patched@8` or `stock=http://host:8000`; raises UnknownName or SpecError."""
        name, _, url = text.partition("=")
        try:
            return cls.model_validate({"name": name, "url": url or None})
        except ValidationError as error:
            raise _in_words(error) from error


class TaskSpec(Part):
    """One lm-eval task. A value left out is the task definition's own.

    `limit` is a number of documents; `repeats` answers per document, each with a seed of its own;
    `max_tokens` counts new tokens.
    """

    name: str = Field(pattern=NAME)
    limit: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=1, ge=1, le=1024)
    num_fewshot: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)


class EnginePart(Part):
    """What every engine may be told: `thinking` models reason before they answer, and stop strings wait for that."""

    thinking: bool = False


class EmulatedEngine(EnginePart):
    """The numpy miniature. `capture_sizes` are the batch sizes of the captured graphs."""

    kind: Literal["emulated"] = "emulated"
    model: ModelName = "canary-v3"
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    max_model_len: int = Field(default=2048, ge=64)

    @property
    def at_once(self) -> int:
        """Most requests that are served at once."""
        return max(self.capture_sizes, default=0)


class VllmEngine(EnginePart):
    """vLLM under Model Runner V2. Names are vLLM's own engine arguments; `engine_args` passes any other
    one through, unknown ones are vLLM's to refuse. `stall_timeout_s` is the longest that a step may take."""

    kind: Literal["vllm"] = "vllm"
    model: ModelName
    revision: str | None = None
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = False
    tensor_parallel_size: int = Field(default=1, ge=1)
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    attention_backend: str | None = None
    cudagraph_mode: Literal["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] = "FULL_DECODE_ONLY"
    compilation_mode: int = Field(default=0, ge=0, le=3)
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    max_model_len: int = Field(default=4096, ge=64)
    max_num_seqs: int = Field(default=32, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    chat_template_kwargs: Mapping[str, Any] | None = None
    start_timeout_s: float = Field(default=1800, gt=0)
    stall_timeout_s: float = Field(default=900, gt=0)
    engine_args: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Most requests that are served at once."""
        return self.max_num_seqs


class EndpointEngine(EnginePart):
    """Running OpenAI-compatible servers, one URL an arm. The key is read from the variable `api_key_env`."""

    kind: Literal["endpoint"] = "endpoint"
    model: str = ""
    api: Literal["completions", "chat"] = "completions"
    api_key_env: str | None = None
    timeout_s: float = Field(default=600, gt=0)
    max_concurrency: int = Field(default=64, ge=1)
    max_retries: int = Field(default=5, ge=0)

    @property
    def at_once(self) -> int:
        """Most requests that are sent at once."""
        return self.max_concurrency


EngineSpec = Annotated[EmulatedEngine | VllmEngine | EndpointEngine, Field(discriminator="kind")]


class Published(Part):
    """Figures somebody published for a task, quoted until a run on the same weights confirms them."""

    source: str
    model: str
    arms: Mapping[str, float]


class RunSpec(Part):
    """All that decides a run's answers, and how they are judged.

    `data_dir` holds gsm8k/{train,test}.jsonl and aime25/test.jsonl for offline runs; without it the hub's
    pinned revision is used. `published` maps a task to published figures; `check_published` turns on the
    question "as published" (only sensible for the same weights). `stop_early` ends an arm's task once it is decided.
    """

    name: str = Field(pattern=NAME)
    description: str = ""
    engine: EngineSpec
    arms: tuple[ArmSpec, ...] = Field(min_length=1)
    tasks: tuple[TaskSpec, ...] = Field(min_length=1)
    seed: int = Field(default=20261201, ge=0)
    data_dir: Annotated[Path, AfterValidator(portable)] | None = None
    policy: str = "default"
    published: Mapping[str, Published] = Field(default_factory=dict)
    check_published: bool = False
    stop_early: bool = False

    @field_validator("arms", mode="before")
    @classmethod
    def _arms_from_names(cls, value: object) -> object:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return value
        return tuple(ArmSpec.parse(item) if isinstance(item, str) else item for item in value)

    @field_validator("tasks", mode="before")
    @classmethod
    def _tasks_from_names(cls, value: object) -> object:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return value
        return tuple({"name": item} if isinstance(item, str) else item for item in value)

    @model_validator(mode="after")
    def _servers_are_endpoints(self) -> RunSpec:
        for arm in self.arms:
            if self.engine.kind == "endpoint" and arm.url is None:
                raise ValueError(f"arm {arm.name} has no server; write {arm.name}=http://host:8000")
            if self.engine.kind != "endpoint" and arm.url is not None:
                raise ValueError(f"arm {arm.name} has a URL, but engine.kind is {self.engine.kind}, not endpoint")
        return self

    @model_validator(mode="after")
    def _engine_serves_as_many(self) -> RunSpec:
        for arm in self.arms:
            if (at_a_time(arm.name) or 0) > self.engine.at_once:
                raise ValueError(
                    f"arm {arm.name} wants more at a time than the {self.engine.at_once} the engine serves"
                )
        return self

    @model_validator(mode="after")
    def _only_confines_stock_under_vllm(self) -> RunSpec:
        for arm in self.arms:
            if arm.only and (arm.capture != "stock" or self.engine.kind != "vllm"):
                raise ValueError(f"arm {arm.name!r}: `only` belongs to the stock path of the vllm engine")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> RunSpec:
        for kind, names in (("arm", [a.name for a in self.arms]), ("task", [t.name for t in self.tasks])):
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise ValueError(f"{kind} {doubled[0]!r} appears twice; an A/A pair is written {doubled[0]}#2")
        return self


def profiles() -> dict[str, str]:
    """Name -> description of the profiles that ship with the package."""
    files = sorted(f.name for f in resources.files("evalharness.profiles").iterdir() if f.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): str(_profile(name).get("description", "")) for name in files}


def load_spec(reference: str, settings: Sequence[str] = ()) -> RunSpec:
    """Load a profile by name or a spec from a YAML file, then apply `key=value` settings.

    Raises:
        UnknownName: neither a profile nor a file.
        SpecError: not YAML, an unknown key or a value out of range; names the nearest key.
    """
    raw = _read(reference)
    for setting in settings:
        _apply(raw, setting)
    return parse_spec(raw)


def parse_spec(raw: Mapping[str, Any]) -> RunSpec:
    """Validate a mapping as a RunSpec; raises SpecError with the first fault in words."""
    try:
        return RunSpec.model_validate(raw)
    except ValidationError as error:
        raise _in_words(error) from error


def _read(reference: str) -> dict[str, Any]:
    if reference.endswith((".yaml", ".yml")):
        return _mapping(_file_text(Path(reference)), reference)
    if reference not in profiles():
        raise UnknownName("profile", reference, profiles())
    return _profile(f"{reference}.yaml")


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, "it is not UTF-8 text") from error


def _unreadable(path: Path, why: str) -> SpecError:
    return SpecError(f"Cannot read spec {path}: {why}.", "Give a profile name or an existing YAML file.")


def _profile(file_name: str) -> dict[str, Any]:
    return _mapping(resources.files("evalharness.profiles").joinpath(file_name).read_text(encoding="utf-8"), file_name)


def _mapping(text: str, where: str) -> dict[str, Any]:
    try:
        loaded = strict_yaml.load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{where} is not valid YAML: {_one_line(error)}.", "Correct the line it names.") from error
    if not isinstance(loaded, dict):
        raise SpecError(f"{where} is not a mapping.", "A spec has keys: name, engine, arms, tasks.")
    return loaded


def _apply(raw: dict[str, Any], setting: str) -> None:
    """Set `a.b.0.c=value` in place; the value is read as YAML. A list item may be named: `tasks.gsm8k.limit=5`."""
    dotted, equals, text = setting.partition("=")
    if not equals or not dotted:
        raise SpecError(f"--set {setting!r} is not key=value.", "Write for example --set engine.max_model_len=4096.")
    *parents, last = dotted.split(".")
    node: Any = raw
    for part in parents:
        node = _child(node, part, setting)
    if isinstance(node, list):
        node[_index(node, last, setting)] = _value(text, setting)
    elif isinstance(node, dict):
        node[last] = _value(text, setting)
    else:
        raise SpecError(f"--set {setting!r}: {'.'.join(parents)} has no parts.", "Set the value itself.")


def _value(text: str, setting: str) -> Any:
    try:
        return strict_yaml.load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"--set {setting!r}: the value is not valid YAML.", "Quote it.") from error


def _child(node: Any, part: str, setting: str) -> Any:
    if isinstance(node, list):
        index = _index(node, part, setting)
        if isinstance(node[index], str):
            node[index] = {"name": node[index]}
        return node[index]
    if not isinstance(node, dict):
        raise SpecError(f"--set {setting!r}: {part!r} lies below a plain value.", "Set the value itself.")
    return node.setdefault(part, {})


def _index(items: list[Any], part: str, setting: str) -> int:
    names = [item["name"] if isinstance(item, dict) else str(item) for item in items]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(items):
        return int(part)
    raise UnknownName(f"item in --set {setting}", part, names)


def _in_words(error: ValidationError) -> SpecError:
    faults = error.errors()
    first = next((fault for fault in faults if fault["type"] == EXTRA), faults[0])  # a typo also leaves a key missing
    where = ".".join(str(part) for part in first["loc"] if part not in {"emulated", "vllm", "endpoint"})
    if first["type"] == EXTRA:
        return SpecError(f"Unknown key {where!r} in the spec.", _nearest_key(str(first["loc"][-1])))
    if first["type"] == "union_tag_invalid":
        return SpecError(f"Unknown {where} kind {first['ctx']['tag']!r}.", _nearest_kind(first["ctx"]))
    said = _one_line(first["msg"].removeprefix("Value error, ")).replace("a valid tuple", "a list")
    subject = f"Spec value {where}" if where else "The spec"
    return SpecError(f"{subject}: {said}.", "Correct it in the spec, or with --set.")


def _nearest_kind(context: Mapping[str, Any]) -> str:
    kinds = re.findall(r"\w+", context["expected_tags"])
    near = difflib.get_close_matches(context["tag"], kinds, n=1, cutoff=0.5)
    return f"Did you mean: {near[0]}?" if near else f"Choose from: {', '.join(kinds)}."


def _nearest_key(key: str) -> str:
    near = difflib.get_close_matches(key, _all_keys(), n=1, cutoff=0.5)
    return (
        f"Did you mean: {near[0]}?" if near else "Remove it; `evalharness run --dry-run` prints the spec as resolved."
    )


def _all_keys() -> Iterable[str]:
    parts = (RunSpec, ArmSpec, TaskSpec, EmulatedEngine, VllmEngine, EndpointEngine, Published)
    return sorted({key for part in parts for key in part.model_fields})


def _one_line(value: object) -> str:
    return re.sub(r"\s+", " ", str(value)).rstrip(". ")
