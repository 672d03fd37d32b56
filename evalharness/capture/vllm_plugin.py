"""vLLM plugin: chooses how Model Runner V2 captures FULL CUDA graphs, and records what it saw.

Entry point of `vllm.general_plugins`; no file of vLLM is edited. It stands between
`CudaGraphManager.capture` and the factory that builds a forward function for each batch descriptor
(vllm/v1/worker/gpu/cudagraph_utils.py, releases 0.20 to 0.33). Without EVALHARNESS_CAPTURE it does nothing.

    EVALHARNESS_CAPTURE=stock                        one attention state for warm-up and capture
    EVALHARNESS_CAPTURE=patched                      a fresh one for the capture
    EVALHARNESS_CAPTURE=native                       whatever the release does; observed only
    EVALHARNESS_CAPTURE=stock:tile_sched_c4a         only this attribute is shared, the rest is fresh
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from evalharness.capture.session import Forward, Session, Setting
from evalharness.records import DescriptorEvidence

VARIABLE = "EVALHARNESS_CAPTURE"
TARGET = "vllm.v1.worker.gpu.cudagraph_utils"
TARGET_MANAGER = "ModelCudaGraphManager"  # the target model's; speculators have managers of their own
ANNOUNCEMENT = "evalharness: %d FULL graphs of %s captured along the %s path; warm-up and capture share state in %d"
logger = logging.getLogger("vllm.evalharness")  # below "vllm", so that vLLM's handlers print it


@dataclass(slots=True)
class Control:
    """This process's setting and what was observed under it: evidence rows by manager, seconds and bytes of
    the last capture, steps by kind. `retained` keeps stock's shared states alive, because their plans lie
    outside the graph pool and the arm is about a stale plan, not about one whose memory was given away."""

    setting: Setting | None = None
    rows: dict[str, list[DescriptorEvidence]] = field(default_factory=dict)
    seconds: float = 0.0
    graph_bytes: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    retained: list[object] = field(default_factory=list)


CONTROL = Control()


def register() -> None:
    """Called by vLLM in the front end, the engine core and every worker."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    CONTROL.setting = Setting.parse(text)
    install()
    # Later releases set their logging up after this; every capture announces itself again.
    logger.info("evalharness: FULL CUDA graphs will be captured along the %s path (%s)", text, VARIABLE)


def install() -> None:
    """Wrap CudaGraphManager now, or right after vLLM imports it; importing it here would be too early."""
    module = sys.modules.get(TARGET)
    if module is not None:
        steer(module)
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Steers TARGET as soon as its own loader has run it; then steps aside."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                steer(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def steer(module: ModuleType) -> None:
    """Wrap capture, dispatch and replay of `module.CudaGraphManager`; subclasses call through to them."""
    manager = module.CudaGraphManager
    if not getattr(manager, "evalharness_steers", False):
        manager.evalharness_steers = True
        manager.capture = _steered_capture(manager.capture)
        manager.dispatch = _counted_dispatch(manager.dispatch)
        manager.run_fullgraph = _counted_replay(manager.run_fullgraph)


def _steered_capture(capture: Forward) -> Forward:
    @functools.wraps(capture)
    def steered(self: Any, create_forward_fn: Forward, *args: Any, **kwargs: Any) -> Any:
        if CONTROL.setting is None:
            return capture(self, create_forward_fn, *args, **kwargs)
        session = Session(create_forward_fn, CONTROL.setting)
        began, free = time.perf_counter(), _free_bytes()
        result = session.finish(capture(self, session.create, *args, **kwargs))
        if type(self).__name__ == TARGET_MANAGER:
            CONTROL.seconds, CONTROL.graph_bytes = time.perf_counter() - began, free - _free_bytes()
        name, shared = type(self).__name__, sum(row.shared is True for row in session.rows)
        logger.info(ANNOUNCEMENT, len(session.rows), name, CONTROL.setting, shared)
        CONTROL.rows[name] = session.rows
        CONTROL.retained += session.shared_states
        return result

    return steered


def _counted_dispatch(dispatch: Forward) -> Forward:
    @functools.wraps(dispatch)
    def counted(self: Any, num_reqs: int, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
        desc = dispatch(self, num_reqs, num_tokens, *args, **kwargs)
        if type(self).__name__ == TARGET_MANAGER:
            kind = "decode" if num_reqs == num_tokens else "prefill"
            CONTROL.steps[f"{desc.cg_mode.name} {kind}"] += 1
        return desc

    return counted


def _counted_replay(replay: Forward) -> Forward:
    @functools.wraps(replay)
    def counted(self: Any, desc: Any) -> Any:
        CONTROL.steps["replay"] += type(self).__name__ == TARGET_MANAGER
        return replay(self, desc)

    return counted


def _free_bytes() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    free: int = torch.cuda.mem_get_info()[0]
    return free
