"""How many replicas a cluster has room for, and what each of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalharness.engines.vllm_settings import gpus, spread
from evalharness.errors import EngineError
from evalharness.spec import RunSpec, VllmEngine


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica takes: GPUs, or a CPU where it needs none. One that is `spread` over nodes leaves the choice of
    its GPUs to vLLM, which makes a placement group of its own."""

    gpus: int
    spread: bool = False

    @classmethod
    def of(cls, spec: RunSpec) -> Need:
        """The need of the spec's engine."""
        engine = spec.engine
        return cls(gpus(engine), spread(engine)) if isinstance(engine, VllmEngine) else cls(0)

    @property
    def gpus_on_a_node(self) -> int:
        """GPUs that the replica's own process holds, all on one node."""
        return 0 if self.spread else self.gpus

    def about(self) -> dict[str, int]:
        """For provenance."""
        return {"gpus_per_replica": self.gpus}

    def room(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Replicas that `nodes` can hold at once, going by all they have, free or not."""
        resource, amount = ("GPU", self.gpus) if self.gpus else ("CPU", 1)
        counts = [int(node.get(resource, 0)) for node in nodes]
        return sum(counts) // amount if self.spread else sum(count // amount for count in counts)


def replicas(spec: RunSpec, wanted: int | None, nodes: Sequence[Mapping[str, float]]) -> tuple[Need, int]:
    """What each replica takes and how many to run: `wanted`, or all there is room for.

    Raises:
        EngineError: there is not that much room; says what there is, and what to change.
    """
    need = Need.of(spec)
    room = need.room(nodes)
    if room == 0:
        raise _no_room(need, nodes)
    if wanted is not None and wanted > room:
        what = f"{need.gpus} GPUs" if need.gpus else "one CPU"
        raise EngineError(
            f"{wanted} replicas of {what} were asked for; the cluster has room for {room}.",
            f"Add nodes, or --replicas {room}.",
        )
    return need, wanted or room


def _no_room(need: Need, nodes: Sequence[Mapping[str, float]]) -> EngineError:
    counts = [int(node.get("GPU", 0)) for node in nodes]
    have = f"the cluster has {sum(counts)} on {len(nodes)} nodes, at most {max(counts, default=0)} on one"
    if not need.gpus:
        return EngineError("The cluster has no CPU for a replica.", "Add a node.")
    if sum(counts) < need.gpus or need.spread:
        remedy = "Add nodes, or lower engine.tensor_parallel_size."
    else:
        remedy = "To spread a replica over nodes: --set engine.engine_args.distributed_executor_backend=ray."
    return EngineError(f"A replica needs {need.gpus} GPUs; {have}.", remedy)
