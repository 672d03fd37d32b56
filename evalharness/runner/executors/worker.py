"""The far side of an executor: one replica that serves order after order and tells what comes of each."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import evalharness
from evalharness.canary.models import model_hash
from evalharness.engines.base import Completion, Request
from evalharness.engines.gpu import visible_gpus
from evalharness.engines.wire import failure, line, record, revived
from evalharness.errors import EvalHarnessError, EvidenceError
from evalharness.provenance import VARIABLES
from evalharness.records import ArmEvidence
from evalharness.redact import SECRET_NAME
from evalharness.runner.replica import Replica, closed
from evalharness.spec import ArmSpec, RunSpec

PREFIXES: Final = ("EVALHARNESS_", "VLLM_")
OF_ONE_NODE: Final = {"CUDA_VISIBLE_DEVICES"}


@dataclass(frozen=True, slots=True)
class Order:
    """What a replica is to do: bring `arm` up, prove it, answer `requests`. Without an arm: only load the model."""

    arm: ArmSpec | None = None
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """A replica's process runs, at `place` (host and GPUs)."""

    place: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The order is done with; after an error too."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The replica is gone, and what it had not yet told with it."""

    reason: str


Report = Started | ArmEvidence | Completion | EvalHarnessError | Ended | Lost


@dataclass(frozen=True, slots=True)
class Brief:
    """What every replica of a run is told once: the spec, and what has to be the same where it runs."""

    spec: RunSpec
    environment: Mapping[str, str]
    version: str
    model: str

    @classmethod
    def of(cls, spec: RunSpec) -> Brief:
        """The brief as this process would run the spec itself."""
        return cls(spec, _environment(), evalharness.__version__, _model(spec))

    def requested(self) -> dict[str, str]:
        """Settings that a replica's evidence is to show."""
        return {"evalharness": self.version, "model": self.model, "environment": _words(self.environment)}

    def observed(self) -> dict[str, str]:
        """The same settings as this process finds them."""
        found = {name: os.environ[name] for name in self.environment if name in os.environ}
        return {"evalharness": evalharness.__version__, "model": _model(self.spec), "environment": _words(found)}


class Worker:
    """Serves orders, one at a time; each comes to lines of text that `heard` reads, the last one `Ended`."""

    def __init__(self, brief: Brief, log_to: Callable[[str], Path] | None = None) -> None:
        self._brief, self._log_to = brief, log_to
        self._replica: Replica | None = None
        self._arm: ArmSpec | None = None
        self._found: Mapping[str, str] = {}
        self._told = False
        self._recalled = threading.Event()

    def serve(self, order: Order) -> Iterator[str]:
        """Do as `order` says. What fails is told, not raised; the engine is then loaded anew by the next order."""
        self._recalled.clear()
        try:
            yield from self._introduced()
            yield from self._obey(order)
        except EvidenceError as error:
            yield line("error", failure(error))
        except Exception as error:  # noqa: BLE001 - the border to foreign code: everything is told
            self.close()
            yield line("error", failure(error))
        yield line("ended", Ended())

    def recall(self) -> None:
        """End the order that is being served after its next answer; safe from another thread."""
        self._recalled.set()

    def close(self) -> None:
        """Stop the engine."""
        replica, self._replica, self._arm = self._replica, None, None
        if replica is not None:
            replica.close()

    def _introduced(self) -> Iterator[str]:
        if not self._told:
            self._told = True
            yield line("started", Started(place()))

    def _obey(self, order: Order) -> Iterator[str]:
        replica = self._opened()
        if order.arm is None:
            return
        if order.arm != self._arm:
            self._arm = None
            replica.use(order.arm)
            self._arm = order.arm
        yield line("evidence", self._witnessed(replica.evidence()))
        if order.requests:
            with closed(replica.generate(order.requests)) as completions:
                for completion in completions:
                    yield line("completion", completion)
                    if self._recalled.is_set():
                        break
            yield line("evidence", self._witnessed(replica.evidence()))

    def _opened(self) -> Replica:
        if self._replica is None:
            self._replica = Replica(self._brief.spec.engine.kind)
            if self._log_to is not None:
                self._replica.log_to(self._log_to)
            self._replica.open(self._brief.spec)
            self._found = self._brief.observed()
        return self._replica

    def _witnessed(self, evidence: ArmEvidence) -> ArmEvidence:
        """`evidence` with what the brief asks for and this process finds; raises EvidenceError where they differ."""
        asked, found = self._brief.requested(), self._found
        for key, want in asked.items():
            if found[key] != want:
                raise EvidenceError(
                    f"On {place()} {key} is {found[key]}; the run was started with {want}.",
                    "Give every node the same software, model and settings.",
                )
        return replace(evidence, requested={**evidence.requested, **asked}, observed={**evidence.observed, **found})


def heard(text: str) -> Report:
    """The report in a line of a worker's."""
    word, _, body = text.rstrip("\n").partition(" ")
    return _KINDS[word](body)


def place() -> str:
    """Host, and the GPUs that this process may use: `node-7 (4 x NVIDIA H200)`."""
    names = [gpu.name for gpu in visible_gpus()]
    return f"{platform.node()} ({len(names)} x {names[0]})" if names else platform.node()


def _environment() -> dict[str, str]:
    """Variables that may change answers, as they are set here; none whose name sounds like a secret."""
    listed = {name for name in os.environ if name in VARIABLES or name.startswith(PREFIXES)}
    return {n: os.environ[n] for n in sorted(listed - OF_ONE_NODE) if not SECRET_NAME.search(n)}


def _words(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(variables.items())) or "nothing set"


def _model(spec: RunSpec) -> str:
    """SHA-256 of a local checkpoint; a model of the hub goes by its name."""
    return model_hash(spec.engine.model) or spec.engine.model


_KINDS: Final[dict[str, Callable[[str], Report]]] = {
    "started": lambda body: record(Started, body),
    "evidence": lambda body: record(ArmEvidence, body),
    "completion": lambda body: record(Completion, body),
    "error": lambda body: revived(body, None),
    "ended": lambda _: Ended(),
}
