"""Starts an OpenAI-compatible server for an arm, proves that it serves, and leaves nothing of it behind."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.capture.vllm_plugin import VARIABLE
from evalharness.engines.endpoint_call import run
from evalharness.engines.endpoint_probe import probe
from evalharness.engines.endpoint_server import Lost, Server
from evalharness.engines.gpu import Gpu, visible_gpus, wait_until_released
from evalharness.engines.group import end_group, ended_how
from evalharness.engines.logtail import RESTART, LogTail, advice
from evalharness.engines.vllm_settings import engine_arguments, environment, without_graphs
from evalharness.errors import EngineError
from evalharness.spec import ArmSpec, EndpointEngine, VllmEngine

HOST = "127.0.0.1"
POLL_S = 0.2
STOP_S = 30.0
HEALTH_S = 2.0
PROBE_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `command` lacks the port, which is added when one is held."""

    arm: str
    model: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 1800.0


def vllm_plan(arm: ArmSpec, options: VllmEngine, command: str = "", extra: Sequence[str] = ()) -> Plan:
    """`vllm serve` with the settings of `options` and the capture path of `arm`. `command` replaces `vllm serve`
    (it gets the model as --model), `extra` arguments come last.

    Raises:
        EngineError: vLLM is not installed.
        SpecError: engine_args repeats what the spec has a key for.
    """
    arguments = engine_arguments(options)
    model = str(arguments.pop("model"))
    if arm.capture == "eager":
        arguments = without_graphs(arguments)
    start = (*shlex.split(command), "--model", model) if command else (_vllm(), "serve", model)
    flags = [part for name, value in arguments.items() for part in _flag(name, value)]
    return Plan(
        arm=arm.name,
        model=options.model,
        command=(*start, "--served-model-name", options.model, "--host", HOST, *flags, *extra),
        variables={**environment(), VARIABLE: "native" if arm.capture == "eager" else arm.path},
        start_timeout_s=options.start_timeout_s,
    )


class ServedArm:
    """A server in a process group of its own. `url` is set once it has answered."""

    def __init__(self, plan: Plan, log: Path, port: int = 0) -> None:
        self.plan, self.log_path = plan, log
        self.url = ""
        self._held = hold_port(port)
        self._before: list[Gpu] = visible_gpus()
        self._alive_fd = -1
        self._guard: subprocess.Popen[bytes] | None = None
        self._log: LogTail | None = None

    def start(self) -> str:
        """Start it and return its URL once it is healthy, serves the model by name and has answered a request.

        Raises:
            EngineError: it ended, printed a fatal line, did not answer in time or does not serve what it should; the
                cause is quoted from its log, and nothing is left running.
        """
        try:
            self._launch()
            url = f"http://{HOST}:{self._held.getsockname()[1]}"
            self._wait_for_health(url)
            self._check(url)
        except BaseException:
            self.stop()
            raise
        self.url = url
        return url

    def check_alive(self) -> None:
        """Raise EngineError with the cause once the server has ended or printed a fatal line."""
        guard, log = self._running()
        if guard.poll() is None and log.fatal is None:
            return
        log.join(timeout=1)
        how = "was stopped after a fatal line" if log.fatal else f"ended ({ended_how(guard.poll())})"
        cause = log.cause()
        raise EngineError(
            f"The server of arm {self.plan.arm} {how}: {cause} (log: {self.log_path}).", advice(cause, RESTART)
        )

    def stop(self) -> list[Gpu]:
        """End the server and all its workers, then wait for GPU memory; returns GPUs that still hold some."""
        guard, self._guard = self._guard, None
        if guard is not None:
            end_group(guard, signal.SIGTERM, STOP_S) or end_group(guard, signal.SIGKILL, STOP_S)
            guard.wait()
            os.close(self._alive_fd)
        if self._log is not None:
            self._log.close()
        self._held.close()
        return wait_until_released(self._before)

    def _launch(self) -> None:
        read_fd, self._alive_fd = os.pipe()
        guard = [sys.executable, "-m", "evalharness.engines.serve_guard", str(read_fd)]
        port = str(self._held.getsockname()[1])
        self._guard = subprocess.Popen(  # noqa: S603 - the user's own server
            [*guard, *self.plan.command, "--port", port],
            pass_fds=(read_fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.plan.variables},
            start_new_session=True,
        )
        os.close(read_fd)
        assert self._guard.stdout is not None  # noqa: S101 - PIPE was asked for
        self._log = LogTail(self._guard.stdout)
        self._log.switch(self.log_path)

    def _running(self) -> tuple[subprocess.Popen[bytes], LogTail]:
        if self._guard is None or self._log is None:
            raise EngineError(f"The server of arm {self.plan.arm} is not running.", "Start it.")
        return self._guard, self._log

    def _wait_for_health(self, url: str) -> None:
        server = Server(url, HEALTH_S)
        deadline = time.monotonic() + self.plan.start_timeout_s
        while not run(_healthy(server)):
            self.check_alive()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"The server of arm {self.plan.arm} did not answer within {self.plan.start_timeout_s:.0f} s:"
                    f" {self._running()[1].cause()} (log: {self.log_path}).",
                    "Raise engine.start_timeout_s if it only needs longer.",
                )
            time.sleep(POLL_S)

    def _check(self, url: str) -> None:
        """One real completion of the model by its name."""
        options = EndpointEngine(model=self.plan.model, timeout_s=PROBE_S)
        try:
            run(probe(Server.of(url, options), options))
        except EngineError:
            self.check_alive()  # a server that died of the request tells more in its log
            raise


def hold_port(port: int = 0) -> socket.socket:
    """A socket that holds `port` of this host, or a free one, without listening: the server, which binds it for reuse
    as servers do, is the only one that will.

    Raises:
        EngineError: the port is in use.
    """
    if port:
        with socket.socket() as attempt:
            try:
                attempt.bind((HOST, port))
            except OSError as error:
                raise EngineError(f"Port {port} is not free: {error.strerror}.", "Choose another --port.") from error
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((HOST, port))
    return held


async def _healthy(server: Server) -> bool:
    """Whether the server lists models, which a server does only when it can serve them."""
    async with server.client() as client:
        try:
            await server.get(client, "/v1/models", server.timeout_s)
        except Lost as lost:
            return lost.status is not None and lost.status not in {500, 502, 503, 504}
    return True


def _vllm() -> str:
    """The `vllm` command of this interpreter's environment."""
    beside = Path(sys.executable).with_name("vllm")
    found = str(beside) if beside.exists() else shutil.which("vllm")
    if found is None:
        raise EngineError("There is no `vllm` command.", "pip install 'evalharness[vllm]', or give --command.")
    return found


def _flag(name: str, value: Any) -> list[str]:
    """An argument of `vllm.LLM` as one of `vllm serve`."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)]
