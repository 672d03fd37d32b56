"""The capture loop of Model Runner V2 in miniature, for every capture path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from evalharness.capture.paths import CapturePath
from evalharness.engines.emulated.device import Device, Graph
from evalharness.engines.emulated.flashmla import AttentionState, SchedMeta, plan_tiles
from evalharness.records import DescriptorEvidence

OWN_PATH_SHARES_STATE = False  # what `native` means here: a fresh state, as vLLM does since 0.22


@dataclass(frozen=True, slots=True, order=True)
class Descriptor:
    """The shape of a full decode graph: one new token for each of `num_tokens` requests."""

    num_tokens: int

    def __str__(self) -> str:
        return f"FULL num_tokens={self.num_tokens}"


@dataclass(frozen=True, slots=True)
class Forward:
    """A step bound to its inputs (calling `run` launches it) and the attention state that it runs on."""

    run: Callable[[], None]
    state: AttentionState


def capture_graphs(
    device: Device,
    create_forward: Callable[[Descriptor], Forward],
    descriptors: Iterable[Descriptor],
    path: CapturePath,
) -> tuple[dict[Descriptor, Graph], tuple[DescriptorEvidence, ...]]:
    """Capture a graph per descriptor, the largest first, and say how each came about.

    `create_forward` prepares dummy inputs, outside any graph, and a forward with a state that nobody has used yet.
    """
    graphs: dict[Descriptor, Graph] = {}
    evidence: list[DescriptorEvidence] = []
    for descriptor in sorted(descriptors, reverse=True):
        factory = _Counted(create_forward, descriptor)
        warmed = factory()
        before = _attributes(warmed.state.sched_meta)
        warmed.run()
        changed = _changed(before, _attributes(warmed.state.sched_meta))

        captured = path.for_capture(warmed, factory)
        with device.capture() as graph:
            captured.run()
        graphs[descriptor] = graph
        evidence.append(_evidence(descriptor, graph, captured.state is warmed.state, changed, factory.calls))
    return graphs, tuple(evidence)


class _Counted:
    """The factory of one descriptor, and how often it was called."""

    def __init__(self, create_forward: Callable[[Descriptor], Forward], descriptor: Descriptor) -> None:
        self._create, self._descriptor, self.calls = create_forward, descriptor, 0

    def __call__(self) -> Forward:
        self.calls += 1
        return self._create(self._descriptor)


def _attributes(meta: SchedMeta) -> dict[str, Any]:
    return {f"{type(meta).__name__}.{field.name}": getattr(meta, field.name) for field in fields(meta)}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Attributes that hold another object than before."""
    return tuple(path for path in after if after[path] is not before[path])


def _evidence(
    descriptor: Descriptor, graph: Graph, shared: bool, changed: tuple[str, ...], calls: int
) -> DescriptorEvidence:
    return DescriptorEvidence(
        descriptor=str(descriptor),
        num_tokens=descriptor.num_tokens,
        shared=shared,
        changed=changed,
        plan_recorded=graph.has(plan_tiles),
        factory_calls=calls,
    )
