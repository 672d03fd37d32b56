"""Engines that misbehave in one way each, for the supervisor to deal with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from evalharness.engines.base import Completion, Request
from evalharness.errors import EvidenceError, SpecError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec


class Echo:
    """Answers every request with its prompt."""

    def __init__(self) -> None:
        self.arm = ""
        self.answered = 0

    def open(self, spec: RunSpec) -> None:
        print(f"loading for {spec.name}", flush=True)

    def use(self, arm: ArmSpec) -> ArmEvidence:
        print(f"arm {arm.name} is up", flush=True)
        self.arm = arm.name
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for request in requests:
            self.answered += 1
            yield Completion(request.id, request.prompt, (1, 2), "stop", 3, 2, 0.5)

    def evidence(self) -> ArmEvidence:
        mode = {"capture_path": self.arm}
        return ArmEvidence(self.arm, "echo", "1", mode, mode, full_replays=self.answered)

    def close(self) -> None:
        print("closed in order", flush=True)


class DiesLoading(Echo):
    def open(self, _: RunSpec) -> None:
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
        time.sleep(600)


class WaitsForItsCore(Echo):
    """Has a process of its own that is killed after the third answer; waits for it all the same, as vLLM does."""

    def open(self, _: RunSpec) -> None:
        self.core = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), name="EngineCore_DP0")
        self.core.start()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for completion in super().generate(requests):
            yield completion
            if self.answered == 3:
                threading.Thread(target=self.core.join, daemon=True).start()
                self.core.kill()
                time.sleep(600)

    def close(self) -> None:
        self.core.terminate()
        self.core.join()
        time.sleep(0.2)
        super().close()


class EndsLoading(Echo):
    def open(self, _: RunSpec) -> None:
        print("Traceback (most recent call last):\nValueError: head size 7 is odd", flush=True)
        os._exit(3)


class RefusesBackend(Echo):
    """As vLLM does when a backend is asked for that the model or the GPU cannot have."""

    def open(self, _: RunSpec) -> None:
        raise ValueError(
            "Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration."
            " Reason: ['MLA not supported']"
        )


class RefusesSpec(Echo):
    def open(self, _: RunSpec) -> None:
        raise SpecError("max_model_len is too long.", "Set it to 4096.")


class FallsBack(Echo):
    def use(self, _: ArmSpec) -> ArmEvidence:
        raise EvidenceError("The V1 runner is in use.", "Set VLLM_USE_V2_MODEL_RUNNER=1.")


class DiesAnswering(Echo):
    """Answers twice, then a worker of its kills it."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for completion in super().generate(requests):
            if self.answered > 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield completion


class Hangs(Echo):
    def use(self, _: ArmSpec) -> ArmEvidence:
        time.sleep(600)
        raise AssertionError


class Patient(Echo):
    """Answers for ever slowly, with a helper process of its own, and ignores SIGTERM."""

    def open(self, _: RunSpec) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"helper {helper.pid}", flush=True)

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for completion in super().generate(requests):
            time.sleep(0.05)
            yield completion


class Buggy(Echo):
    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        yield from super().generate(list(requests)[:1])
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Stalls(Echo):
    """Answers once, then hangs as in a collective that waits for a dead peer."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        yield from super().generate(list(requests)[:1])
        time.sleep(600)


class Ticking(Echo):
    """Answers once, then works on the second answer for as long as `seconds`, a step after the other."""

    seconds = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.tick: Callable[[], None] = lambda: None

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        first, *others = super().generate(requests)
        yield first
        for _ in range(int(self.seconds / 0.05)):
            time.sleep(0.05)
            self.tick()
        yield from others


class Endless(Ticking):
    seconds = 600.0


class Chatty(Echo):
    """Prints much to both streams, up to the moment at which it is asked for something else."""

    def use(self, arm: ArmSpec) -> ArmEvidence:
        self.arm = arm.name
        return self.evidence()

    def evidence(self) -> ArmEvidence:
        for _ in range(500):
            print(f"out of {self.arm}")
            print(f"err of {self.arm}", file=sys.stderr)
        sys.stderr.write(f"half a line of {self.arm}")
        return super().evidence()

    def close(self) -> None:
        """Has said enough."""


class Autotunes(Echo):
    """Prints what Inductor prints of a kernel it leaves, then takes its time."""

    def use(self, arm: ArmSpec) -> ArmEvidence:
        print("OutOfMemoryError: out of resource: triton_mm Required: 327680. Ignoring this choice.", flush=True)
        time.sleep(1.5)
        return super().use(arm)
