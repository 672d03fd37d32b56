"""How many replicas fit on which nodes, and what is said when none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from evalharness.errors import EngineError
from evalharness.runner.executors.room import Need, replicas
from evalharness.spec import RunSpec, load_spec

HEAD = {"CPU": 8.0}
EIGHT = {"CPU": 64.0, "GPU": 8.0}
SPREAD = "engine_args: {distributed_executor_backend: ray}"


def vllm(tensor_parallel: int, more: str = "engine_args: {}") -> RunSpec:
    engine = f"engine={{kind: vllm, model: canary-v3, tensor_parallel_size: {tensor_parallel}, {more}}}"
    return load_spec("canary-v3", [engine])


@pytest.mark.parametrize(
    ("spec", "nodes", "size"),
    [
        (vllm(4), [EIGHT], 2),
        (vllm(4), [HEAD, EIGHT, EIGHT], 4),
        (vllm(8), [HEAD, EIGHT, {"GPU": 4.0}], 1),
        (vllm(2, "engine_args: {pipeline_parallel_size: 2}"), [EIGHT], 2),
        (vllm(16, SPREAD), [EIGHT, EIGHT], 1),
        (load_spec("canary-v3"), [HEAD, {"CPU": 2.0}], 10),
    ],
)
def test_as_many_replicas_as_fit_on_whole_nodes(spec: RunSpec, nodes: Sequence[Mapping[str, float]], size: int) -> None:
    assert replicas(spec, None, nodes)[1] == size
    assert replicas(spec, 1, nodes)[1] == 1
    with pytest.raises(EngineError, match=rf"room for {size}\. Add nodes, or --replicas {size}"):
        replicas(spec, size + 1, nodes)


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        (vllm(4), [HEAD], "needs 4 GPUs; the cluster has 0 on 1 nodes.*lower engine.tensor_parallel_size"),
        (vllm(16), [EIGHT, EIGHT], "needs 16 GPUs; the cluster has 16 on 2 nodes, at most 8 on one.*=ray"),
        (vllm(32, SPREAD), [EIGHT, EIGHT], "needs 32 GPUs; the cluster has 16.*Add nodes"),
        (load_spec("canary-v3"), [{}], "no CPU"),
    ],
)
def test_have_and_need_and_the_remedy_are_said(spec: RunSpec, nodes: Sequence[Mapping[str, float]], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        replicas(spec, None, nodes)


def test_a_replica_on_one_node_holds_its_gpus_and_a_spread_one_leaves_them_to_vllm() -> None:
    assert Need.of(vllm(4)).gpus_on_a_node == 4
    assert Need.of(vllm(16, SPREAD)).gpus_on_a_node == 0
