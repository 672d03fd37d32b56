"""Where a run's replicas live: the Executor protocol, and what a user may ask of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from evalharness.engines.base import Engine
from evalharness.errors import UsageError
from evalharness.spec import RunSpec
from evalharness.store import RunFolder


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to run. None of it decides an answer, so none of it is part of the spec or the fingerprint.

    `address` is Ray's; `replicas` None takes as many as there is room for; `slurm` are options of sbatch, KEY=VALUE.
    """

    executor: str = "local"
    address: str = ""
    replicas: int | None = None
    slurm: tuple[str, ...] = ()


class Executor(Protocol):
    """Brings up the replicas of a run. To the runner all of them together are one engine."""

    def begin(self, spec: RunSpec) -> None:
        """Start to load what `engine` will hand out, where that can go on while the run is planned."""

    def engine(self, spec: RunSpec, folder: RunFolder) -> Engine:
        """A new, unopened engine for the arms of `spec`; what it prints goes to the logs of `folder`."""

    def about(self) -> Mapping[str, str | int]:
        """What the run's provenance says of it: its name, its version, its replicas."""

    def close(self) -> None:
        """Give back whatever it holds beyond the engines handed out."""


def refuse_options(placement: Placement, *others: str) -> None:
    """Raise UsageError for an option of `others` that was given: one that would be ignored is refused."""
    default = Placement()
    given = [f"--{name}" for name in others if getattr(placement, name) != getattr(default, name)]
    if given:
        raise UsageError(f"--executor {placement.executor} has no use for {', '.join(given)}.", "Leave it out.")


def refuse_endpoint(spec: RunSpec) -> None:
    """Raise UsageError for an engine that is a server already and has no replicas to place."""
    if spec.engine.kind == "endpoint":
        raise UsageError(
            "The servers of an endpoint run are running already; there is nothing to place.", "Leave out --executor."
        )
