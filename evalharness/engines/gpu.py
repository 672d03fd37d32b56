"""The GPUs of this machine through NVML, which needs no CUDA context and takes no GPU memory."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLACK_BYTES = 512 << 20  # what a driver may keep back or another process take meanwhile
RELEASE_S = 60.0
POLL_S = 0.5
FAMILIES = {9: "Hopper", 10: "Blackwell", 12: "Blackwell"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible GPU; memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    total: int
    used: int

    @property
    def family(self) -> str | None:
        """Hopper or Blackwell; None: another one, on which FlashMLA does not run."""
        return FAMILIES.get(self.capability[0])

    @property
    def free(self) -> int:
        """Bytes nobody uses."""
        return self.total - self.used


def visible_gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; none when there is no driver."""
    nvml = _nvml()
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [_gpu(nvml, index, handle) for index, handle in enumerate(_handles(nvml))]
    except nvml.NVMLError:  # CUDA_VISIBLE_DEVICES names one that is not there
        return []
    finally:
        nvml.nvmlShutdown()


def wait_until_released(before: Sequence[Gpu], timeout_s: float = RELEASE_S) -> list[Gpu]:
    """Wait until every GPU uses no more than in `before`; returns those that still do at the end."""
    deadline = time.monotonic() + timeout_s
    while True:
        then = {gpu.index: gpu.used for gpu in before}
        holding = [gpu for gpu in visible_gpus() if gpu.used > then.get(gpu.index, gpu.used) + SLACK_BYTES]
        if not holding or time.monotonic() > deadline:
            return holding
        time.sleep(POLL_S)


def _nvml() -> Any:
    """nvidia-ml-py, or the copy of it that vLLM carries, loaded without importing vLLM."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        vllm = importlib.util.find_spec("vllm")
    for folder in (vllm.submodule_search_locations or []) if vllm else []:
        spec = importlib.util.spec_from_file_location("_pynvml", Path(folder) / "third_party" / "pynvml.py")
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # the file looks itself up there
            spec.loader.exec_module(module)
            return module
    return None


def _handles(nvml: Any) -> list[Any]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    return Gpu(index, text, (int(major), int(minor)), int(memory.total), int(memory.used))
