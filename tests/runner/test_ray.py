"""A real Ray cluster of several nodes on this machine, the emulated engine on each, and a node that dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.errors import EngineError, UsageError
from evalharness.records import ArmState
from evalharness.runner import local
from evalharness.runner.executors import Placement, connected
from evalharness.runner.executors import ray as on_ray
from evalharness.spec import load_spec
from evalharness.store import RunFolder
from tests.runner.sharded import After, answers, children, small

SMALL = {"object_store_memory": 80 << 20}
VLLM = ["engine={kind: vllm, model: canary-v3, tensor_parallel_size: 4}"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed (extra [ray])")
    head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
    made = utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, **SMALL)
        yield made
    finally:
        made.shutdown()


def power_off(cluster: Any) -> None:
    """End a node with all that runs on it, and put another in its place."""
    node = next(iter(cluster.worker_nodes))
    raylet = node.all_processes["raylet"][0].process.pid
    for child in children(raylet):
        os.kill(child, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=1, **SMALL)


def test_a_node_killed_in_the_middle_changes_no_answer(cluster: Any, whole: RunFolder, tmp_path: Path) -> None:
    run = small()
    with connected(Placement("ray", cluster.address), run) as executor:
        folder = local.start(run, tmp_path, After("patched", 3, lambda: power_off(cluster)), executor)
    record = folder.read_run()
    assert {arm.state for arm in record.arms} == {ArmState.DONE}
    assert answers(folder, run) == answers(whole, run)
    assert record.fingerprint == whole.read_run().fingerprint
    assert record.provenance["executors"][0]["executor"] == "ray"
    assert record.provenance["executors"][0]["replicas"] == 2
    (note,) = (note for note in folder.read_evidence()["patched"].notes if "was lost" in note)
    assert note.startswith("replica ")
    assert all(evidence.mismatches == () for evidence in folder.read_evidence().values())


def test_a_run_begun_here_is_finished_by_ray(cluster: Any, whole: RunFolder, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    run = small()
    with pytest.raises(KeyboardInterrupt):
        local.start(run, tmp_path, After("stock", 20, interrupt))
    folder = RunFolder(next(tmp_path.iterdir()))
    with connected(Placement("ray", cluster.address), run) as executor:
        local.resume(folder, None, executor)
    assert answers(folder, run) == answers(whole, run)
    assert [one["executor"] for one in folder.read_run().provenance["executors"]] == ["local", "ray"]


def test_the_driver_s_environment_reaches_every_worker(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALHARNESS_CAPTURE", "native")
    run = small("tasks=[{name: gsm8k_canary, limit: 2}]", "arms=[patched]")
    with connected(Placement("ray", cluster.address, replicas=2), run) as executor:
        folder = local.start(run, tmp_path, None, executor)
    for evidence in folder.read_evidence().values():
        assert evidence.observed["environment"] == "EVALHARNESS_CAPTURE=native"
        assert evidence.mismatches == ()


@pytest.mark.parametrize(
    ("settings", "replicas", "words"),
    [
        (VLLM, None, r"needs 4 GPUs; the cluster has 0 on 3 nodes, at most 0 on one\. Add nodes, or lower"),
        ([], 5, r"5 replicas of one CPU were asked for; the cluster has room for 2\. Add nodes, or --replicas 2"),
    ],
)
def test_too_little_room_is_said_before_anything_loads(
    cluster: Any, settings: list[str], replicas: int | None, words: str
) -> None:
    with (
        pytest.raises(EngineError, match=words),
        connected(Placement("ray", cluster.address, replicas), small(*settings)),
    ):
        pass


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'evalharness\[ray\]'"), connected(Placement("ray"), small()):
        pass


def test_an_address_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    with (
        pytest.raises(EngineError, match=rf"{address}: .*refused\. Start one with"),
        connected(Placement("ray", address), small()),
    ):
        pass
    assert time.monotonic() - began < 3


def test_a_port_that_is_not_ray_s_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "JOIN_S", 4.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(EngineError, match=r"no word of it in 4 s"), connected(Placement("ray", address), small()):
            pass


def test_an_address_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere.invalid:6379")
    with pytest.raises(EngineError, match=r"answers at nowhere\.invalid:6379"), connected(Placement("ray"), small()):
        pass


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "nowhere.invalid:6379", "127.0.0.1:port"])
def test_an_address_that_cannot_be_one_is_refused(address: str) -> None:
    with pytest.raises(EngineError, match=r"--address HOST:PORT"), connected(Placement("ray", address), small()):
        pass


def test_options_of_another_executor_are_refused() -> None:
    for placement in (Placement("ray", slurm=("partition=gpu",)), Placement("local", replicas=2)):
        with pytest.raises(UsageError, match="has no use for"), connected(placement, small()):
            pass
    endpoint = load_spec("endpoint", ["arms=['stock=http://127.0.0.1:1']"])
    with pytest.raises(UsageError, match="nothing to place"), connected(Placement("ray"), endpoint):
        pass
