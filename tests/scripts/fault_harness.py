"""The harness with a stand-in for vLLM in the engine's child process, so that the GPU host's faults can be rehearsed.

    python -m tests.scripts.fault_harness run canary-v3-gpu ...

Everything but vLLM itself is real: command line, runner, supervisor, wire, the engine's own code, the worker
extension and the plugin. FAULT_HARNESS_BALLAST names a file that, while it exists, holds the stand-in GPU's memory.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness import cli
from evalharness.engines import vllm, vllm_preflight
from evalharness.engines.gpu import Gpu
from evalharness.engines.vllm_core import VllmCore
from tests.engines import fake_vllm

BALLAST = "FAULT_HARNESS_BALLAST"
LOAD_S, STATE_S, STEP_S = 0.5, 0.1, 0.02


def main() -> None:
    """The command line, with the checks that need a GPU or an installed vLLM answered by stand-ins."""
    vllm.CORE = "tests.scripts.fault_harness:create"
    for module in (vllm, vllm_preflight):
        module.visible_gpus = gpus  # type: ignore[attr-defined]
    vllm_preflight.CHECKS = tuple(check for check in vllm_preflight.CHECKS if check.__name__ != "_release")
    vllm_preflight.PATIENCE_S = 0.5
    cli.main()


def gpus() -> list[Gpu]:
    """One Hopper GPU, whose memory is held while the ballast's file is there."""
    held = Path(os.environ.get(BALLAST, "/nowhere")).exists()
    return [Gpu(0, "stand-in", (9, 0), 140 << 30, (136 if held else 1) << 30)]


def create() -> VllmCore:
    """The engine's own code over the stand-in, made as slow as a person needs to hit it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    patches = pytest.MonkeyPatch()
    allowed = os.environ.get("VLLM_PLUGINS", "evalharness_capture").split(",")
    fake_vllm.install(patches, plugin="evalharness_capture" in allowed)
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0":
        fake_vllm.Installed.runner_module = "vllm.v1.worker.gpu_model_runner"
    patches.setattr(fake_vllm.SchedMeta, "__init__", slowed(fake_vllm.SchedMeta.__init__))
    sys.modules["vllm"].LLM = LLM  # type: ignore[attr-defined]
    return VllmCore()


@contextmanager
def cuda_context() -> Iterator[None]:
    """Holds what a process with a CUDA context holds, by its name."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "nvidia-uvm").open("w"):
        yield


def core() -> None:
    """An EngineCore as the script finds it."""
    with cuda_context():
        time.sleep(600)


def stopped(pid: int | None) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(STATE_S)
        return call(*args, **kwargs)

    return slow


class LLM(fake_vllm.LLM):
    """Starts an EngineCore where vLLM would, falls back where vLLM would, and prints what vLLM prints."""

    def __init__(self, **arguments: Any) -> None:
        if arguments.get("kv_cache_memory_bytes", 0) > 140 << 30:
            raise MemoryError("CUDA out of memory. Tried to allocate 279.00 GiB.")
        self.core = None
        if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1":
            self.core = multiprocessing.get_context("spawn").Process(target=core, name="EngineCore_DP0", daemon=True)
            self.core.start()
        super().__init__(**arguments)
        with cuda_context():
            time.sleep(LOAD_S)
        if "PIECEWISE" in arguments["compilation_config"]["cudagraph_mode"]:
            self.worker.model_runner.cudagraph_manager.cudagraph_mode = SimpleNamespace(name="NONE")
        step = self.llm_engine.step
        self.llm_engine.step = lambda: self.stepped(step)  # type: ignore[method-assign]

    def stepped(self, step: Callable[[], Any]) -> Any:
        time.sleep(STEP_S)
        # vLLM's client waits for a core that was stopped, and for one that was killed as well.
        while self.core is not None and (not self.core.is_alive() or stopped(self.core.pid)):
            time.sleep(STEP_S)
        return step()

    def reset_prefix_cache(self) -> bool:
        print("Successfully reset prefix cache", flush=True)
        return super().reset_prefix_cache()


if __name__ == "__main__":
    main()
