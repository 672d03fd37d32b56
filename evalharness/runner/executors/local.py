"""The executor `local`: one replica on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from evalharness.runner.executors.base import Placement, refuse_options
from evalharness.runner.replica import Replica
from evalharness.spec import RunSpec
from evalharness.store import RunFolder


class Local:
    """One replica in this process, which is all that most runs need."""

    def engine(self, spec: RunSpec, folder: RunFolder) -> Replica:
        """The replica; its output goes to the logs of `folder`."""
        replica = Replica(spec.engine.kind)
        replica.log_to(folder.log_path)
        return replica

    def about(self) -> Mapping[str, str | int]:
        """Its name."""
        return {"executor": "local"}

    def close(self) -> None:
        """Nothing is held."""


def connect(placement: Placement, spec: RunSpec) -> Local:  # noqa: ARG001 - every executor's signature
    """The executor; raises UsageError for options that are another's."""
    refuse_options(placement, "address", "replicas", "slurm")
    return Local()
