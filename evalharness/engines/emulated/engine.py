"""The emulated engine: one model in memory, any number of arms one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from threadpoolctl import threadpool_limits

import evalharness
from evalharness.canary.models import local_model
from evalharness.capture.paths import NO_PATH, CapturePath, capture_path, observed_path
from evalharness.engines.base import Completion, Request
from evalharness.engines.emulated.capture import OWN_PATH_SHARES_STATE
from evalharness.engines.emulated.checkpoint import read_config, read_tensors
from evalharness.engines.emulated.prompts import Prefiller
from evalharness.engines.emulated.runner import ModelRunner
from evalharness.engines.emulated.scheduler import DecodeCount, Scheduler
from evalharness.engines.emulated.text import Text
from evalharness.engines.emulated.weights import Model, build_model
from evalharness.errors import EngineError, EvidenceError
from evalharness.records import ArmEvidence, DescriptorEvidence
from evalharness.spec import ArmSpec, EmulatedEngine, RunSpec

RUNNER = "MRV2-miniature"
BACKEND = "FLASHMLA-miniature"


@dataclass(frozen=True, slots=True)
class Opened:
    """What lives from `open` to `close`."""

    options: EmulatedEngine
    text: Text
    runner: ModelRunner
    workers: ThreadPoolExecutor
    load_seconds: float


@dataclass(frozen=True, slots=True)
class ArmInUse:
    """The arm of the last `use`: its evidence at capture, and the decode work since."""

    evidence: ArmEvidence
    count: DecodeCount = field(default_factory=DecodeCount)


class Emulator:
    """The Engine of kind `emulated`; see evalharness.engines.base.Engine for the protocol."""

    def __init__(self) -> None:
        self._opened: Opened | None = None
        self._arm: ArmInUse | None = None

    def open(self, spec: RunSpec) -> None:
        """Load the model of `spec`.

        Raises:
            EngineError: no such model folder, a model this engine does not implement, or a context it cannot hold.
        """
        self.close()
        started = time.perf_counter()
        if not isinstance(spec.engine, EmulatedEngine):
            raise EngineError(f"The spec asks for the engine {spec.engine.kind}.", "Open that engine instead.")
        options = spec.engine
        if min(options.capture_sizes, default=0) < 1:
            raise EngineError(
                f"engine.capture_sizes {list(options.capture_sizes)} names no batch to run.", "Give sizes of 1 and up."
            )
        model, text = load_model(options.model, options.max_model_len)
        runner = _runner(model, options)
        workers = ThreadPoolExecutor(_prefill_workers(), thread_name_prefix="prefill")
        self._opened = Opened(options, text, runner, workers, time.perf_counter() - started)

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Capture the graphs of `arm` (an arm without a capture path runs eagerly) and prove how it was done.

        Raises:
            EngineError: the engine is not open.
            EvidenceError: what was captured is not what the arm asks for.
        """
        opened = self._require_open()
        path, started = _path(arm), time.perf_counter()
        opened.runner.drop_graphs()
        self._arm = None
        with _single_blas_thread():
            descriptors = opened.runner.capture(path) if path else ()
        costs = {
            "load_seconds": opened.load_seconds,
            "capture_seconds": time.perf_counter() - started,
            "graph_nodes": float(opened.runner.graph_nodes),
            "graph_bytes": float(opened.runner.graph_bytes),
        }
        evidence = _evidence(arm, path, descriptors, costs)
        if evidence.mismatches:
            raise EvidenceError(
                f"Arm {arm.name} asked for {dict(evidence.requested)} but got {dict(evidence.observed)}.",
                "Report this; the emulated engine has no reason to fall back.",
            )
        self._arm = ArmInUse(evidence)
        return evidence

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Answer `requests` under the arm in use; a request that cannot fit the context gets an `error` completion.

        `token_ids` include the end-of-sequence token, and the tokens of a stop string.

        Raises:
            EngineError: no arm is in use.
        """
        opened, arm = self._require_open(), self._require_arm()
        prefiller = Prefiller(opened.runner.model, opened.workers)
        scheduler = Scheduler(opened.runner, prefiller, opened.text, opened.options.max_model_len, arm.count)
        with _single_blas_thread():
            yield from scheduler.serve(requests)

    def evidence(self) -> ArmEvidence:
        """Evidence of the arm in use, with replays, eager steps and decode speed so far. Raises EngineError."""
        opened, arm = self._require_open(), self._require_arm()
        return replace(
            arm.evidence,
            full_replays=opened.runner.full_replays,
            eager_steps=opened.runner.eager_steps,
            costs={**arm.evidence.costs, "decode_tokens_per_s": arm.count.tokens_per_s},
        )

    def close(self) -> None:
        """End the worker threads and drop the model; may be called more than once."""
        if self._opened is not None:
            self._opened.workers.shutdown(cancel_futures=True)
        self._opened = self._arm = None

    def _require_open(self) -> Opened:
        if self._opened is None:
            raise EngineError("The emulated engine is not open.", "Call open(spec) first.")
        return self._opened

    def _require_arm(self) -> ArmInUse:
        if self._arm is None:
            raise EngineError("No arm is in use.", "Call use(arm) first.")
        return self._arm


def load_model(name: str, max_model_len: int) -> tuple[Model, Text]:
    """Load a canary by name, or any local folder in Hugging Face's layout. Raises EngineError."""
    folder = local_model(name)
    if folder is None:
        raise EngineError(f"There is no model folder {name!r}.", "Set engine.model to canary-v3 or to a local folder.")
    config = read_config(folder)
    if max_model_len > config.max_position_embeddings:
        raise EngineError(
            f"engine.max_model_len {max_model_len} is over the model's own limit.",
            f"Set it to {config.max_position_embeddings} or less.",
        )
    return build_model(config, read_tensors(folder), max_model_len), Text.read(folder, config.vocab_size)


def _runner(model: Model, options: EmulatedEngine) -> ModelRunner:
    try:
        return ModelRunner(model, options.capture_sizes, options.max_model_len)
    except MemoryError as error:
        raise EngineError(
            f"There is no memory for {max(options.capture_sizes)} requests of {options.max_model_len} tokens: {error}.",
            "Lower engine.max_model_len or the largest of engine.capture_sizes.",
        ) from error


def _evidence(
    arm: ArmSpec, path: CapturePath | None, descriptors: tuple[DescriptorEvidence, ...], costs: dict[str, float]
) -> ArmEvidence:
    """Requested as the arm says, with a path left to the engine resolved; observed as was captured."""
    named = capture_path(arm.capture)
    return ArmEvidence(
        arm=arm.name,
        engine="emulated",
        engine_version=evalharness.__version__,
        requested=_settings(captured=path is not None, path=path.name if path else NO_PATH),
        observed=_settings(captured=bool(descriptors), path=observed_path(d.shared for d in descriptors)),
        descriptors=descriptors,
        costs=costs,
        notes=(f"{named.name} is {path.name} in this engine",) if named and path and named != path else (),
    )


def _path(arm: ArmSpec) -> CapturePath | None:
    """The capture path of an arm, one left to the engine resolved to what this engine does; None: no graphs."""
    path = capture_path(arm.capture)
    return path.resolved(OWN_PATH_SHARES_STATE) if path else None


def _settings(*, captured: bool, path: str) -> dict[str, str]:
    return {
        "runner": RUNNER,
        "cudagraph_mode": "FULL_DECODE_ONLY" if captured else "NONE",
        "attention_backend": BACKEND,
        "capture_path": path,
    }


def _prefill_workers() -> int:
    """A thread for every core but the one that decodes."""
    return max(1, min(4, (os.cpu_count() or 2) - 1))


def _single_blas_thread() -> threadpool_limits:
    """The kernels are small: BLAS threads would only wait for each other, and for everybody else on the machine."""
    return threadpool_limits(limits=1, user_api="blas")
