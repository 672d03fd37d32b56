"""The table of executors: where the replicas of a run live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from evalharness.errors import UnknownName
from evalharness.runner.executors.base import Executor, Placement
from evalharness.spec import RunSpec

__all__ = ["EXECUTORS", "Executor", "Placement", "connected"]

EXECUTORS: dict[str, tuple[str, str]] = {
    "local": ("evalharness.runner.executors.local", "one replica on this machine"),
    "ray": ("evalharness.runner.executors.ray", "replicas on the nodes of a Ray cluster; extra [ray]"),
    "slurm": ("evalharness.runner.executors.slurm", "replicas as Slurm jobs, over shared storage; extra [slurm]"),
}


@contextmanager
def connected(placement: Placement, spec: RunSpec) -> Iterator[Executor]:
    """The executor that `placement` names, ready to run `spec`; its module's `connect()` makes it.

    Raises:
        UnknownName: there is no such executor.
        UsageError: an option that does not go with the executor or the spec.
        EngineError: it cannot be reached, or has less than the spec needs; nothing was loaded.
    """
    if placement.executor not in EXECUTORS:
        raise UnknownName("executor", placement.executor, EXECUTORS)
    executor: Executor = import_module(EXECUTORS[placement.executor][0]).connect(placement, spec)
    try:
        yield executor
    finally:
        executor.close()
