"""The border to lm-eval: task definitions loaded quickly and quietly, with only their data source replaced.

lm-eval is imported inside functions, for it takes a second.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from evalharness.errors import DataError, SpecError, UnknownName
from evalharness.scoring.data import SOURCES, Row, Splits, load_splits

# lm-eval's own definitions served here: name -> (YAML inside lm_eval/tasks, what it is).
LM_EVAL_TASKS: dict[str, tuple[str, str]] = {
    "gsm8k": ("gsm8k/gsm8k.yaml", "1319 grade-school word problems, 5-shot (lm-eval's own task)"),
    "aime25": ("aime/aime25.yaml", "30 problems of AIME 2025, integer answers (lm-eval's own task)"),
}
PACKAGE = Path(__file__).resolve().parents[1]
FEWSHOT_SEED = 1234  # lm-eval's default, so that prompts are those of the lm_eval command
DEFAULT_MAX_TOKENS = 256  # lm-eval's default where a task names none
INVALID = "[invalid]"  # what lm-eval's regex filter returns when nothing matched
_MAX_TOKEN_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_GENERATION_KEYS = {"until", "do_sample", "temperature", "top_p", *_MAX_TOKEN_KEYS}


@dataclass(frozen=True, slots=True)
class Generation:
    """How a task wants its answers generated; temperature 0 is greedy, `max_tokens` counts new tokens."""

    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One document as lm-eval asks it. `doc_hash` is the one lm-eval logs."""

    doc_id: int
    doc: Mapping[str, Any]
    doc_hash: str
    text: str
    target: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """lm-eval's verdict on one answer. `scores` has the metrics under the task's first filter by their own names
    and, where there are several filters, the first metric under each filter's name. `extracted` maps a filter to
    what it read (None: nothing)."""

    scores: Mapping[str, float]
    extracted: Mapping[str, str | None]


class Definition:
    """One lm-eval task."""

    def __init__(self, name: str, task: Any) -> None:
        _refuse_unservable(name, task)
        self.name = name
        self.task = task

    @property
    def metric(self) -> str:
        """Name of the task's first metric."""
        return str(next(iter(self.task.aggregation())))

    @property
    def generation(self) -> Generation:
        """The task's own generation settings; raises SpecError as `read_generation` does."""
        return read_generation(self.name, self.task.config.generation_kwargs or {})

    def prompts(self, limit: int | None = None, num_fewshot: int | None = None) -> Iterator[Prompt]:
        """The first `limit` documents as lm-eval renders them; the same for the same arguments, always.

        Raises:
            SpecError: there are fewer examples than `num_fewshot` asks for.
        """
        shots = self.task.config.num_fewshot or 0 if num_fewshot is None else num_fewshot
        self.task.set_fewshot_seed(FEWSHOT_SEED)
        for doc_id, doc in self.task.doc_iterator(limit=limit):
            text = self._context(doc, shots)
            yield Prompt(doc_id, doc, lm_eval_doc_hash(doc), text, str(self.task.doc_to_target(doc)))

    def evaluate(self, prompt: Prompt, answer: str) -> Evaluation:
        """Score one answer with lm-eval's filters and metrics, as if it were the only response."""
        from lm_eval.api.instance import Instance

        request = Instance("generate_until", prompt.doc, (prompt.text, {}), 0, (self.name, prompt.doc_id, 1), [answer])
        for ensemble in self.task._filters:  # noqa: SLF001 - lm-eval has no public way to filter one response
            ensemble.apply([request])
        results = {
            name: _numbers(self.task.process_results(prompt.doc, [filtered]))
            for name, filtered in request.filtered_resps.items()
        }
        scores = dict(next(iter(results.values())))
        if len(results) > 1:
            scores |= {name: found[self.metric] for name, found in results.items() if self.metric in found}
        read = {name: text for name, text in request.filtered_resps.items() if text != answer}
        return Evaluation(scores, {name: None if text == INVALID else str(text) for name, text in read.items()})

    def _context(self, doc: Row, shots: int) -> str:
        try:
            return str(self.task.fewshot_context(doc, num_fewshot=shots, gen_prefix=self.task.doc_to_prefix(doc)))
        except (ValueError, AssertionError, AttributeError) as error:
            if not shots:
                raise
            raise SpecError(
                f"Task {self.name} cannot give {shots} examples: {error}.", "Lower num_fewshot of the task."
            ) from error


def read_generation(task: str, settings: Mapping[str, Any]) -> Generation:
    """lm-eval's `generation_kwargs` of a task.

    Raises:
        SpecError: they hold a setting that no engine here takes; dropping it would change the answers.
    """
    unknown = sorted(settings.keys() - _GENERATION_KEYS)
    if unknown:
        raise SpecError(
            f"Task {task} sets generation_kwargs.{unknown[0]}, which no engine here takes.",
            f"Remove it; known are {', '.join(sorted(_GENERATION_KEYS))}.",
        )
    until = settings.get("until") or ()
    temperature = float(settings.get("temperature", 1.0 if settings.get("do_sample") else 0.0))
    return Generation(
        next((int(settings[key]) for key in _MAX_TOKEN_KEYS if settings.get(key)), DEFAULT_MAX_TOKENS),
        temperature if settings.get("do_sample", True) else 0.0,
        float(settings.get("top_p", 1.0)),
        (until,) if isinstance(until, str) else tuple(until),
    )


def task_files() -> dict[str, Path]:
    """Task name -> its YAML in tasks/: a file there is all that a new task needs."""
    found = {}
    for path in sorted(tasks_dir().glob("*.yaml")):
        name = _read_yaml(path).get("task")
        if isinstance(name, str):
            found[name] = path
    return found


def task_names() -> dict[str, str]:
    """Every task by name with a word on what it is; fast, without lm-eval."""
    own = {name: _description(_read_yaml(path)) for name, path in task_files().items()}
    return {name: about for name, (_, about) in LM_EVAL_TASKS.items()} | own


def tasks_dir(package: Path = PACKAGE) -> Path:
    """The folder of this project's task definitions: inside the package in a wheel, tasks/ beside it in a checkout.

    Raises:
        DataError: neither is there.
    """
    for folder in (package / "_tasks", package.parent / "tasks"):
        if folder.is_dir():
            return folder
    raise DataError(f"The task definitions {package / '_tasks'} are missing.", "Install evalharness again.")


def load(name: str, data_dir: Path | None = None, splits: Splits | None = None) -> Definition:
    """The definition of task `name`, its documents loaded, or those of `splits` in their place.

    Raises:
        UnknownName: there is no such task.
        DataError: its data is missing or wrong, or its YAML is not a task.
    """
    files = task_files()
    if name not in files and name not in LM_EVAL_TASKS:
        raise UnknownName("task", name, task_names())
    if splits is None and name in SOURCES:
        splits = load_splits(SOURCES[name], data_dir)
    path = files.get(name) or _lm_eval_folder() / LM_EVAL_TASKS[name][0]
    with _quiet():
        return _defined(name, path, splits)


def lm_eval_doc_hash(doc: Mapping[str, Any]) -> str:
    """The `doc_hash` that lm-eval 0.4.13 logs for a document."""
    from lm_eval.utils import handle_non_serializable

    text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _defined(name: str, path: Path, splits: Splits | None) -> Definition:
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    _compile_templates_once()
    try:
        config = load_yaml(path)
        config.pop("tag", None)
        if splits is not None:
            config["custom_dataset"] = _serving(splits)
        return Definition(name, ConfigurableTask(config=config))
    except SpecError:
        raise
    except Exception as error:
        raise DataError(
            f"Task {name} ({path.name}) cannot be loaded: {type(error).__name__}: {error}".rstrip(".") + ".",
            "Correct its YAML, or make its dataset reachable.",
        ) from error


def _serving(splits: Splits) -> Callable[..., Any]:
    from datasets import Dataset, DatasetDict

    loaded = DatasetDict({split: Dataset.from_list(list(rows)) for split, rows in splits.items()})
    return lambda **_: loaded


def _compile_templates_once() -> None:
    """Keep lm-eval's compiled Jinja templates. It compiles one anew for every document and field, which is 6.0 of
    the 6.3 s that gsm8k's 1319 five-shot prompts take here."""
    from lm_eval.utils import env

    if not hasattr(env.from_string, "cache_info"):
        env.from_string = functools.lru_cache(maxsize=512)(env.from_string)


def _refuse_unservable(name: str, task: Any) -> None:
    """Raise SpecError for a task that needs more than generated text, or a metric lm-eval does not have."""
    if task.OUTPUT_TYPE != "generate_until":
        raise SpecError(
            f"Task {name} is of type {task.OUTPUT_TYPE}, which needs log-likelihoods.",
            "Engines here generate text: choose a task with output_type generate_until.",
        )
    known = task.config.process_results or task._metric_fn_list  # noqa: SLF001 - lm-eval only logs a missing metric
    if isinstance(known, dict) and None in known.values():
        missing = next(metric for metric, function in known.items() if function is None)
        raise SpecError(f"Task {name} names the metric {missing!r}.", "Name one that lm-eval has: exact_match, ...")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep lm-eval's notes on a custom dataset, of no use to a user, off the terminal."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are one finite number a document (a corpus metric returns its ingredients)."""
    numbers = {name: float(value) for name, value in metrics.items() if not isinstance(value, Sequence)}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _lm_eval_folder() -> Path:
    spec = find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("lm-eval is not installed.", "Run: pip install lm-eval==0.4.13.")
    return Path(next(iter(spec.submodule_search_locations))) / "tasks"


class _Loader(yaml.SafeLoader):
    """Reads a task YAML without importing the functions it names."""


_Loader.add_constructor("!function", lambda _, node: str(node.value))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"Task file {path} cannot be read: {error}.", "Correct or remove it.") from error
    return loaded if isinstance(loaded, dict) else {}


def _description(config: Mapping[str, Any]) -> str:
    metadata = config.get("metadata")
    return str(metadata.get("description", "")) if isinstance(metadata, Mapping) else ""
