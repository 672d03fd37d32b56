"""The executor `local`: one replica on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from evalharness.runner.executors.base import Placement, refuse_options
from evalharness.runner.replica import Replica
from evalharness.spec import RunSpec
from evalharness.store import RunFolder


class Local:
    """One replica in this process, which is all that most runs need."""

    def __init__(self) -> None:
        self._begun: Replica | None = None

    def begin(self, spec: RunSpec) -> None:
        """Have a replica load that `engine` hands out first."""
        self._begun = Replica(spec.engine.kind)
        self._begun.begin(spec)

    def engine(self, spec: RunSpec, folder: RunFolder) -> Replica:
        """A replica; its output goes to the logs of `folder`."""
        begun, self._begun = self._begun, None
        replica = begun or Replica(spec.engine.kind)
        replica.log_to(folder.log_path)
        return replica

    def about(self) -> Mapping[str, str | int]:
        """Its name."""
        return {"executor": "local"}

    def close(self) -> None:
        """Give up a replica that was begun for nothing."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()


def connect(placement: Placement, spec: RunSpec) -> Local:  # noqa: ARG001 - every executor's signature
    """The executor; raises UsageError for options that are another's."""
    refuse_options(placement, "address", "replicas", "slurm")
    return Local()
