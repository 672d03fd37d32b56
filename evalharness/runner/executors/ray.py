"""The executor `ray`: replicas as actors on the nodes of a Ray cluster; this process alone writes the run's folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from evalharness.capture.vllm_plugin import VARIABLE as PLUGIN
from evalharness.engines.base import Completion, Request
from evalharness.errors import EngineError
from evalharness.records import ArmEvidence
from evalharness.runner.executors.base import Placement, refuse_endpoint, refuse_options
from evalharness.runner.executors.fleet import Fleet
from evalharness.runner.executors.room import Need, replicas
from evalharness.runner.executors.worker import Brief, Lost, Order, Report, Worker, heard
from evalharness.spec import ArmSpec, RunSpec
from evalharness.store import RunFolder

REACH_S: Final = 5.0  # until a port answers
JOIN_S: Final = 30.0  # until what answers has shown to be a Ray cluster; Ray itself would try for minutes
PATIENCE_S: Final = 60.0
CLOSE_S: Final = 60.0
AUTO: Final = "auto"  # the address of RAY_ADDRESS, or a cluster that this machine is part of
OWN: Final = "local"  # Ray's word for a cluster that is started for this run alone
QUIET: Final = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
PROBE: Final = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
START: Final = "Start one with `ray start --head`, name it with --address HOST:PORT, or take --address local."


class RayExecutor:
    """`size` replicas, each with the GPUs of `need`, on the cluster that this process has joined."""

    def __init__(self, ray: Any, need: Need, size: int) -> None:
        self._ray, self._need, self._size = ray, need, size

    def begin(self, spec: RunSpec) -> None:
        """Nothing: replicas are hired for a run that is planned."""

    def engine(self, spec: RunSpec, folder: RunFolder) -> Fleet:  # noqa: ARG002 - a node need not see the folder
        """The fleet of replicas, not yet hired."""
        return Fleet(RayCluster(self._ray, Brief.of(spec), self._need), self._size)

    def about(self) -> Mapping[str, str | int]:
        """Ray's version, the number of replicas and what each takes."""
        return {"executor": "ray", "ray": self._ray.__version__, "replicas": self._size, **self._need.about()}

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


class RayCluster:
    """An actor for each replica; a stream of its lines for the order that it serves."""

    patience_s: float | None = PATIENCE_S

    def __init__(self, ray: Any, brief: Brief, need: Need) -> None:
        self._ray, self._brief = ray, brief
        # Two threads: one serves, the other hears of a recall meanwhile.
        self._options = {
            "num_cpus": 1,
            "num_gpus": need.gpus_on_a_node,
            "max_concurrency": 2,
            "runtime_env": {"env_vars": {**brief.environment, **(self._spreading() if need.spread else {})}},
        }
        self._actors: dict[str, Any] = {}
        self._streams: dict[Any, str] = {}
        self._placed: set[str] = set()

    def hire(self, name: str) -> None:
        """Ask for an actor; it waits for a place by itself."""
        self._actors[name] = self._ray.remote(Worker).options(**self._options).remote(self._brief)

    def send(self, name: str, order: Order) -> None:
        """Have the actor serve `order`."""
        stream = self._actors[name].serve.options(num_returns="streaming").remote(order)
        self._streams[stream] = name

    def earlier(self, _: ArmSpec, __: Mapping[str, Request]) -> Iterator[tuple[str, ArmEvidence | Completion]]:
        """Nothing: actors end with the process that hired them."""
        return iter(())

    def recall(self, name: str) -> None:
        """Tell the actor's other thread."""
        self._actors[name].recall.remote()

    def reports(self, timeout_s: float) -> Iterator[tuple[str, Report]]:
        """One line of every actor that has told one."""
        streams = list(self._streams)
        ready, _ = self._ray.wait(streams, num_returns=1, timeout=timeout_s, fetch_local=False)
        if len(streams) > 1:
            ready, _ = self._ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        for stream in ready:
            name = self._streams[stream]
            report = self._next(stream)
            if report is not None and name in self._actors:
                self._placed.add(name)
                yield name, report

    def dismiss(self, name: str) -> None:
        """Kill the actor; an engine process that it supervises ends with it."""
        actor = self._actors.pop(name)
        self._streams = {stream: whose for stream, whose in self._streams.items() if whose != name}
        self._ray.kill(actor)

    def close(self) -> None:
        """Let every engine stop, then kill the actors."""
        stopping = [actor.close.remote() for name, actor in self._actors.items() if name in self._placed]
        if stopping:
            self._ray.wait(stopping, num_returns=len(stopping), timeout=CLOSE_S)
        for name in list(self._actors):
            self.dismiss(name)

    def _spreading(self) -> dict[str, str]:
        """What vLLM needs to find the cluster, and to hand the plugin's variable on to its own workers there."""
        cluster = self._ray.get_runtime_context().gcs_address
        return {"RAY_ADDRESS": cluster, "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": PLUGIN}

    def _next(self, stream: Any) -> Report | None:
        """The next line of a stream; None at its end."""
        try:
            return heard(self._ray.get(next(stream)))
        except StopIteration:
            del self._streams[stream]
            return None
        except self._ray.exceptions.RayError as error:
            del self._streams[stream]
            return Lost(_in_short(error))


def connect(placement: Placement, spec: RunSpec) -> RayExecutor:
    """Join the cluster and see that it has room, before anything is loaded.

    Raises:
        UsageError: options of another executor, or an engine that Ray cannot place.
        EngineError: Ray is not installed, no cluster answers, or it has fewer GPUs than the replicas need.
    """
    refuse_options(placement, "slurm")
    refuse_endpoint(spec)
    ray = _installed()
    address = placement.address or AUTO
    if address == AUTO:  # as Ray does, but so that the address can be named when nobody answers
        address = os.environ.get("RAY_ADDRESS") or AUTO
    _reach(address)
    try:
        with _signals_kept():
            ray.init(address=address, **QUIET)
        need, size = replicas(spec, placement.replicas, _nodes(ray))
    except ConnectionError as error:
        raise _nobody(address, _in_short(error)) from error
    except BaseException:
        ray.shutdown()
        raise
    return RayExecutor(ray, need, size)


def _installed() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise EngineError("Ray is not installed.", "pip install 'evalharness[ray]'") from error


def _reach(address: str) -> None:
    """Find out in bounded time whether a cluster answers; Ray's own attempt lasts minutes and ends the process."""
    if address == OWN:
        return
    if address.startswith("ray://"):
        raise EngineError(
            "Ray Client (ray://) cannot stream answers.", "Run on a node of the cluster, with --address HOST:PORT."
        )
    host, colon, port = address.rpartition(":")
    try:
        if colon:
            socket.create_connection((host, int(port)), REACH_S).close()
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=JOIN_S, check=False
        )
    except (OSError, ValueError) as error:
        raise _nobody(address, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _nobody(address, f"no word of it in {JOIN_S:.0f} s") from error
    if done.returncode:
        raise _nobody(address, (done.stderr.strip().splitlines() or ["it gave no reason"])[-1])


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; a run ends by it as by Ctrl-C, with its answers saved."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _nobody(address: str, why: str) -> EngineError:
    return EngineError(f"No Ray cluster answers at {address}: {why.rstrip('.')}.", START)


def _nodes(ray: Any) -> list[Mapping[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _in_short(error: BaseException) -> str:
    """Type and first line of an error of Ray's, which goes on for many."""
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
