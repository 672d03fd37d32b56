"""What runs inside vLLM's workers: captures again under another path, and tells what is in use.

`worker_extension_cls="evalharness.capture.worker.CaptureExtension"` mixes these methods into the worker;
`collective_rpc` calls them. Answers are JSON text, which every transport between vLLM's processes takes.
Attributes of vLLM used here were read in releases 0.20 to 0.33 (docs/CAPTURE.md).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from evalharness.capture.session import Setting
from evalharness.capture.vllm_plugin import CONTROL, TARGET, TARGET_MANAGER
from evalharness.records import DescriptorEvidence

V2_MODULE = "vllm.v1.worker.gpu.model_runner"


@dataclass(frozen=True, slots=True)
class GraphSet:
    """The graphs of every manager as captured under one setting, and the evidence of that capture."""

    graphs: tuple[tuple[Any, dict[Any, Any]], ...]
    rows: list[DescriptorEvidence]
    seconds: float
    graph_bytes: int


class CaptureExtension:
    """Methods added to vLLM's Worker. Their names must not clash with the worker's own."""

    def evalharness_eager(self) -> str:
        """Stop dispatching to graphs: every step runs the model's forward. Returns the state as JSON."""
        _dispatch(self, enabled=False)
        return self.evalharness_state()

    def evalharness_capture(self, setting: str) -> str:
        """Use graphs captured under `setting`, captured now unless they already were. Returns the state."""
        if _runner_version(self) == "V2" and CONTROL.setting is not None:
            sets = _sets(self)
            if setting not in sets:
                _recapture(self, setting)
                sets[setting] = _current(self)
            _install(self, setting, sets[setting])
        return self.evalharness_state()

    def evalharness_state(self) -> str:
        """What this worker runs now, and its steps since the arm began."""
        return json.dumps(_state(self))


def _runner_version(worker: Any) -> str:
    return "V2" if type(worker.model_runner).__module__ == V2_MODULE else "V1"


def _managers(worker: Any) -> list[Any]:
    """The target model's CudaGraphManager, then those of speculator and model state, where they have some."""
    runner = worker.model_runner
    kind = import_module(TARGET).CudaGraphManager
    holders = (getattr(runner, "speculator", None), getattr(runner, "model_state", None))
    others = [value for holder in holders if holder is not None for value in vars(holder).values()]
    return [runner.cudagraph_manager, *(value for value in others if isinstance(value, kind))]


def _sets(worker: Any) -> dict[str, GraphSet]:
    """Graph sets by setting; begins with what vLLM captured while it started. They are all kept, because a
    memory pool whose graphs have all died cannot be captured into again."""
    sets: dict[str, GraphSet] = vars(worker).setdefault("_evalharness_sets", {})
    if not sets:
        sets[str(CONTROL.setting)] = _current(worker)
    return sets


def _current(worker: Any) -> GraphSet:
    graphs = tuple((manager, manager.graphs) for manager in _managers(worker))
    return GraphSet(graphs, CONTROL.rows.get(TARGET_MANAGER, []), CONTROL.seconds, CONTROL.graph_bytes)


def _recapture(worker: Any, setting: str) -> None:
    torch, config = import_module("torch"), import_module("vllm.config")
    torch.cuda.synchronize()
    CONTROL.setting = Setting.parse(setting)
    for manager in _managers(worker):
        manager.graphs = {}
    _dispatch(worker, enabled=False)
    with config.set_current_vllm_config(worker.vllm_config):
        worker.model_runner.capture_model()
    torch.cuda.synchronize()


def _install(worker: Any, setting: str, chosen: GraphSet) -> None:
    for manager, graphs in chosen.graphs:
        manager.graphs = graphs
    CONTROL.setting = Setting.parse(setting)
    CONTROL.rows[TARGET_MANAGER] = chosen.rows
    CONTROL.seconds, CONTROL.graph_bytes = chosen.seconds, chosen.graph_bytes
    _dispatch(worker, enabled=True)


def _dispatch(worker: Any, *, enabled: bool) -> None:
    """`dispatch` answers NONE while `_graphs_captured` is false; steps are counted from here on."""
    CONTROL.steps.clear()
    if _runner_version(worker) == "V2":
        for manager in _managers(worker):
            manager._graphs_captured = enabled and bool(manager.graphs)  # noqa: SLF001 - vLLM's own switch


def _state(worker: Any) -> dict[str, Any]:
    runner = worker.model_runner
    manager = runner.cudagraph_manager if _runner_version(worker) == "V2" else None
    dispatching = bool(manager is not None and manager.graphs and manager._graphs_captured)  # noqa: SLF001
    return {
        "rank": getattr(worker, "rank", 0),
        "runner": _runner_version(worker),
        "plugin": CONTROL.setting is not None,
        "setting": str(CONTROL.setting or ""),
        "mode": manager.cudagraph_mode.name if manager is not None and dispatching else "NONE",
        "revision": getattr(worker.vllm_config.model_config.hf_config, "_commit_hash", None),  # of a model from the hub
        "backends": sorted({group.backend.get_name() for groups in runner.attn_groups for group in groups}),
        "rows": [asdict(row) for row in CONTROL.rows.get(TARGET_MANAGER, [])] if dispatching else [],
        "steps": dict(CONTROL.steps),
        "capture_seconds": CONTROL.seconds if dispatching else 0.0,
        "graph_bytes": CONTROL.graph_bytes if dispatching else 0,
    }
