"""The Engine protocol and the table of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from evalharness.errors import UnknownName
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to answer. Temperature 0 is greedy; `seed` decides a sampled answer alone, whatever
    else is in the batch. `id` is unique within a `generate` call."""

    id: str
    prompt: str
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. `finish_reason` is `stop`, `length` or `error`; an errored one says why in `error`
    and is infrastructure, not an answer. The stop string is not part of `text`. `seconds` counts from
    the moment the engine admitted the request."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    seconds: float
    reasoning: str = ""
    error: str | None = None


@runtime_checkable
class Engine(Protocol):
    """Opens once and serves several arms, so that weights load once.

    Every method raises `EngineError` when the engine cannot go on; `close` may be called at any time,
    more than once.
    """

    def open(self, spec: RunSpec) -> None:
        """Load the model of `spec`."""

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Bring `arm` up (capture its graphs) and prove it; raises `EvidenceError` on a silent fallback."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Answer `requests` under the arm in use; yields each completion as it finishes, in any order."""

    def evidence(self) -> ArmEvidence:
        """Evidence of the arm in use with the replay counts so far."""

    def close(self) -> None:
        """Stop, and give back every process and all memory."""


@runtime_checkable
class WritesLogs(Protocol):
    """An engine whose output can be sent to files."""

    def log_to(self, path_of: Callable[[str], Path]) -> None:
        """Write what the engine prints under an arm to `path_of(arm)`, while it loads to `path_of("engine")`."""


@runtime_checkable
class Ticks(Protocol):
    """An engine that can be watched, and stopped between two completions: while it generates it calls `tick` after
    every step of its own. What `tick` raises ends `generate`."""

    tick: Callable[[], None]


@runtime_checkable
class LoadsApart(Protocol):
    """An engine in a process of its own, which can be at work while this one is."""

    def begin(self, spec: RunSpec) -> None:
        """Start to load; `open` of the same spec waits for the end. `close` gives it up at once."""

    def follow(self, arm: ArmSpec) -> None:
        """Bring `arm` up as soon as the next `generate` is answered, after the evidence of the arm in use is taken.

        The calls that come next are `evidence()` and `use(arm)`, as without it; they find their answers ready.
        """


ENGINES: dict[str, tuple[str, str]] = {
    "emulated": ("evalharness.engines.emulated", "numpy miniature of MRV2 and FlashMLA on the CPU; built in"),
    "vllm": ("evalharness.engines.vllm", "vLLM 0.20-0.33 under Model Runner V2 on a Hopper or Blackwell GPU"),
    "endpoint": ("evalharness.engines.endpoint", "one running OpenAI-compatible server per arm"),
}


def create_engine(kind: str) -> Engine:
    """Return a new, unopened engine of `kind`; its module's `create()` makes it.

    Raises:
        UnknownName: `kind` is not in ENGINES.
    """
    if kind not in ENGINES:
        raise UnknownName("engine", kind, ENGINES)
    engine: Engine = import_module(ENGINES[kind][0]).create()
    return engine
