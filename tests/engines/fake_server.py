"""A stand-in for `vllm serve` that takes its arguments and behaves in one way each.

python -m tests.engines.fake_server BEHAVIOUR --model M --served-model-name N --host H --port P ...
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.engines.openai_server import Handler, Quiet, Reply, Script

TRACEBACK = (
    "Traceback (most recent call last):\n  File 'engine.py', line 1\nValueError: head size 7 is odd\nshutting down"
)


def serve(host: str, port: int, script: Script) -> None:
    with Quiet((host, port), type("ServedHandler", (Handler,), {"script": script})) as server:
        print(f"serving {script.model}; capture path {os.environ.get('EVALHARNESS_CAPTURE')}", flush=True)
        server.serve_forever()


def start_worker() -> None:
    """A worker that would outlive the server, as an engine core does, and print its pid."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    print(f"worker {subprocess.Popen([sys.executable, '-c', code]).pid}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    for name in ("--model", "--served-model-name", "--host"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    given, others = parser.parse_known_args()
    print(f"arguments {others}; pid {os.getpid()}", flush=True)
    script = Script(lambda _: "4", model=given.served_model_name)
    BEHAVIOURS.get(given.behaviour, lambda _: None)(script)
    serve(given.host, given.port, script)


def dies(_: Script) -> None:
    print(TRACEBACK, flush=True)
    sys.exit(1)


def runs_out_of_memory(_: Script) -> None:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
    time.sleep(600)


def report_fatally(_: object) -> Reply:
    print("(EngineCore) ERROR NCCL error: unhandled system error", flush=True)
    return Reply(500, {})


BEHAVIOURS: dict[str, Callable[[Script], object]] = {
    "dies": dies,
    "out-of-memory": runs_out_of_memory,
    "hangs": lambda _: time.sleep(600),
    "other-model": lambda script: setattr(script, "model", "another"),
    "cannot-answer": lambda script: setattr(script, "refuses", "prompt"),
    "worker": lambda _: start_worker(),
    "talks": lambda _: print("x" * 1_000_000, flush=True),
    "stubborn": lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "dies-serving": lambda script: setattr(script, "answer", report_fatally),
}


if __name__ == "__main__":
    main()
