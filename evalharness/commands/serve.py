"""Serving one arm until the user, or the server, ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from evalharness.engines.serve import ServedArm, vllm_plan
from evalharness.errors import SpecError
from evalharness.runner.choose import chosen_arm
from evalharness.spec import VllmEngine, load_spec

WATCH_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)
console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Serving:
    """Arguments of `serve-arm`."""

    arm: str
    reference: str
    port: int = 0
    log: Path | None = None
    command: str = ""
    settings: tuple[str, ...] = ()
    extra: Sequence[str] = ()


def serve_arm(wanted: Serving) -> int:
    """Start the arm's server, print its URL, watch it until SIGINT or SIGTERM, and stop it.

    Raises:
        SpecError: the profile is not one of the vllm engine.
        EngineError: the server cannot start, or ended by itself.
    """
    spec = load_spec(wanted.reference, wanted.settings)
    options, arm = spec.engine, chosen_arm(spec, wanted.arm)
    if not isinstance(options, VllmEngine):
        raise SpecError(f"Profile {wanted.reference} is of the engine {options.kind}.", "Name one of the vllm engine.")
    log = wanted.log or Path(f"serve-{arm.name}.log")
    served = ServedArm(vllm_plan(arm, options, wanted.command, wanted.extra), log, wanted.port)
    _interrupt_on_signals()
    console.print(f"starting arm {arm.name} of {options.model}; log: {log}", markup=False)
    try:
        url = served.start()
        console.print(f"arm {arm.name} is served: evalharness run --arm {arm.name}={url}", markup=False)
        while True:
            time.sleep(WATCH_S)
            served.check_alive()
    except KeyboardInterrupt:
        console.print(f"stopping arm {arm.name}")
    finally:
        for gpu in served.stop():
            console.print(f"GPU {gpu.index} still has {gpu.used >> 20} MiB in use: see nvidia-smi for who holds it.")
    return 0


def _interrupt_on_signals() -> None:
    """SIGTERM interrupts as Ctrl-C does; once: stopping is not to be interrupted again."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    for number in SIGNALS:
        signal.signal(number, interrupt)
