"""From what vLLM's workers say to the evidence of an arm, and to the words for what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evalharness.capture.paths import NO_PATH, capture_path, observed_path
from evalharness.errors import EvidenceError
from evalharness.records import ArmEvidence, DescriptorEvidence
from evalharness.spec import ArmSpec, VllmEngine

RUNNER = "V2"
NO_GRAPHS = "NONE"
WorkerState = Mapping[str, Any]
REMEDIES: dict[str, str] = {
    "runner": "Model Runner V2 was asked for (VLLM_USE_V2_MODEL_RUNNER=1); drop the engine_args it does not support.",
    "cudagraph_mode": "Set engine.cudagraph_mode to a mode that this attention backend supports (FULL_DECODE_ONLY for"
    " FlashMLA), and engine.capture_sizes up to engine.max_num_seqs.",
    "attention_backend": "Set engine.attention_backend to the one observed, or engine.block_size and"
    " engine.kv_cache_dtype to values the one requested accepts (FLASHMLA: 64, auto).",
    "capture_path": "Install evalharness in vLLM's environment; leave VLLM_PLUGINS unset, or add evalharness_capture.",
}


def arm_evidence(
    arm: ArmSpec, options: VllmEngine, version: str, workers: Sequence[WorkerState], costs: Mapping[str, float]
) -> ArmEvidence:
    """Evidence of `arm` from the state of every worker; steps are those of the first (all take the same)."""
    descriptors = tuple(DescriptorEvidence(**{**row, "changed": tuple(row["changed"])}) for row in workers[0]["rows"])
    observed = _observed(workers, options)
    steps = workers[0]["steps"]
    return ArmEvidence(
        arm=arm.name,
        engine="vllm",
        engine_version=version,
        requested=_requested(arm, options, observed),
        observed=observed,
        descriptors=descriptors,
        full_replays=steps.get("replay", 0),
        eager_steps=sum(count for kind, count in steps.items() if kind.startswith(NO_GRAPHS)),
        costs={**costs, **_capture_costs(workers)},
        notes=tuple(_notes(arm, version, workers, observed)),
    )


def refuse_fallback(evidence: ArmEvidence, workers: Sequence[WorkerState]) -> None:
    """Raise EvidenceError when something other than the arm's settings is in use; names what to change."""
    unsteered = [worker["rank"] for worker in workers if not worker["plugin"]]
    if unsteered:
        raise EvidenceError(
            f"The capture plugin did not load in vLLM's worker {unsteered[0]}.", REMEDIES["capture_path"]
        )
    for key in evidence.mismatches:
        raise EvidenceError(
            f"Arm {evidence.arm}: {key} is {evidence.observed.get(key)}, not {evidence.requested[key]}.", REMEDIES[key]
        )


def _requested(arm: ArmSpec, options: VllmEngine, observed: Mapping[str, str]) -> dict[str, str]:
    path = capture_path(arm.capture)
    wanted = {"runner": RUNNER, "cudagraph_mode": options.cudagraph_mode if path else NO_GRAPHS}
    if options.attention_backend:
        wanted["attention_backend"] = options.attention_backend
    if path is None:
        wanted["capture_path"] = NO_PATH
    elif path.shares_state is None:  # whatever the release does is what was asked for
        wanted["capture_path"] = observed["capture_path"]
    else:
        wanted["capture_path"] = path.name
    return wanted


def _observed(workers: Sequence[WorkerState], options: VllmEngine) -> dict[str, str]:
    seen = [
        {
            "runner": worker["runner"],
            "cudagraph_mode": _mode(worker),
            "attention_backend": _backend(worker["backends"], options.attention_backend),
            "capture_path": observed_path(row["shared"] for row in worker["rows"]),
            **({"model_revision": worker["revision"]} if worker.get("revision") else {}),
        }
        for worker in workers
    ]
    return {key: _agreed(values[key] for values in seen) for key in seen[0]}


def _agreed(values: Iterable[str]) -> str:
    return " | ".join(sorted(set(values)))


def _mode(worker: WorkerState) -> str:
    """The mode in use: what it was set to, unless the steps taken tell of another."""
    steps = worker["steps"]
    if worker["mode"] != NO_GRAPHS and steps.get(f"{NO_GRAPHS} decode", 0) and not steps.get("replay", 0):
        return NO_GRAPHS
    return str(worker["mode"])


def _backend(backends: Sequence[str], requested: str | None) -> str:
    """A model may need several; the requested one counts when it is among them."""
    return requested if requested is not None and requested in backends else "+".join(backends)


def _capture_costs(workers: Sequence[WorkerState]) -> dict[str, float]:
    return {
        "capture_seconds": max(float(worker["capture_seconds"]) for worker in workers),
        "graph_bytes": float(sum(worker["graph_bytes"] for worker in workers)),
    }


def _notes(arm: ArmSpec, version: str, workers: Sequence[WorkerState], observed: Mapping[str, str]) -> Iterable[str]:
    worker = workers[0]
    path = capture_path(arm.capture)
    yield f"attention backends: {', '.join(worker['backends'])}"
    if len(workers) > 1:
        yield f"{len(workers)} workers agree" if len({w["mode"] for w in workers}) == 1 else "workers disagree"
    if path is None:
        yield "eager is the same engine without graph dispatch"
        return
    if path.shares_state is None:
        yield f"native is {observed['capture_path']} in vLLM {version}"
        yield "native's graphs are the first in their memory pool; the other paths' reuse what it has free"
    if ":" in worker["setting"]:
        yield f"stock is confined to {worker['setting'].partition(':')[2]}; all other state is fresh"
    uncovered = worker["steps"].get(f"{NO_GRAPHS} decode", 0)
    if uncovered:
        yield f"{uncovered} decode steps ran without a graph: batches over the largest capture size"
