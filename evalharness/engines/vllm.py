"""The vllm engine as the runner sees it: checked before it starts, then supervised in a child process."""

from __future__ import annotations

import sys

from evalharness.engines.gpu import Gpu, visible_gpus, wait_until_released
from evalharness.engines.process import SupervisedEngine
from evalharness.engines.vllm_preflight import check
from evalharness.engines.vllm_settings import environment
from evalharness.spec import RunSpec

CORE = "evalharness.engines.vllm_core:create"


class _Gpus:
    """Remembers what the GPUs had in use before the child started, and waits for it to be so again."""

    def __init__(self) -> None:
        self._before: list[Gpu] = []

    def prepare(self, spec: RunSpec) -> dict[str, str]:
        check(spec)
        self._before = visible_gpus()
        return environment()

    def wait(self) -> None:
        for gpu in wait_until_released(self._before):
            # The next start checks free memory and refuses in words; a stop itself has nothing to undo.
            print(f"GPU {gpu.index} still has {gpu.used >> 20} MiB in use after the engine stopped.", file=sys.stderr)


def create() -> SupervisedEngine:
    """A new, unopened engine."""
    gpus = _Gpus()
    return SupervisedEngine(CORE, gpus.prepare, gpus.wait)
