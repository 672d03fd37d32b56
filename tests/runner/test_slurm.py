"""Replicas as jobs of submitit's local executor and of a small Slurm: put back into the queue, killed, out of disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalharness.errors import EngineError, StoreError, UsageError
from evalharness.records import ArmState
from evalharness.runner import local
from evalharness.runner.executors import Placement, connected, slurm
from evalharness.runner.executors.worker import Brief
from evalharness.spec import RunSpec, load_spec
from evalharness.store import RunFolder
from tests.runner.sharded import After, answers, children, small
from tests.runner.small_slurm import install

pytest.importorskip("submitit", reason="submitit is not installed (extra [slurm])")
HERE = Placement("slurm", replicas=2, slurm=("cluster=local",))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every job that a test submits."""
    found: list[Any] = []
    hire = slurm.SlurmCluster.hire

    def remembered(self: slurm.SlurmCluster, name: str) -> None:
        hire(self, name)
        found.append(self._jobs[name])

    monkeypatch.setattr(slurm.SlurmCluster, "hire", remembered)
    return found


def test_a_job_put_back_into_the_queue_goes_on_where_it_was(jobs: list[Any], whole: RunFolder, tmp_path: Path) -> None:
    def preempt() -> None:
        (task,) = children(jobs[0]._process.pid)
        os.kill(task, signal.SIGUSR2)

    run = small()
    with connected(HERE, run) as executor:
        folder = local.start(run, tmp_path, After("patched", 3, preempt), executor)
    assert answers(folder, run) == answers(whole, run)
    assert {arm.state for arm in folder.read_run().arms} == {ArmState.DONE}
    assert len(jobs) == 2
    notes = folder.read_evidence()["patched"].notes
    assert any("start 2: " in note for note in notes)
    assert any(
        note.endswith("put back into the queue; the steps behind its last answers are not counted") for note in notes
    )
    assert not (folder.path / "shards").exists()


def test_a_job_that_dies_is_replaced_and_only_its_missing_questions_asked(
    jobs: list[Any], whole: RunFolder, tmp_path: Path
) -> None:
    def kill() -> None:
        controller = jobs[1]._process.pid
        for process in (*children(controller), controller):
            os.kill(process, signal.SIGKILL)

    run = small()
    with connected(HERE, run) as executor:
        folder = local.start(run, tmp_path, After("patched", 3, kill), executor)
    assert answers(folder, run) == answers(whole, run)
    assert len(jobs) == 3
    assert any("was lost" in note for note in folder.read_evidence()["patched"].notes)


def test_what_jobs_answered_after_their_run_was_killed_is_not_asked_again(whole: RunFolder, tmp_path: Path) -> None:
    run = small("arms=[patched]")
    folder = killed_at_its_first_answers(run, tmp_path)
    told = wait_for_the_end_of_orders(folder.path / "shards" / "1")
    saved = folder.path.glob("samples/*/*.jsonl")
    assert sum(path.read_bytes().count(b"\n") for path in saved) < told == 36
    with connected(HERE, run) as executor:
        local.resume(folder, None, executor)
    assert answers(folder, run) == {key: sample for key, sample in answers(whole, small()).items() if "patched" in key}
    assert any("of sitting 1" in note for note in folder.read_evidence()["patched"].notes)
    assert not list(folder.path.glob("shards/2/*/order-3.json"))


def test_a_full_shared_disk_fails_the_arm_in_words_and_keeps_what_was_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    submitter = slurm.SlurmExecutor.submitter

    def limited(self: slurm.SlurmExecutor, folder: Path) -> Any:
        made = submitter(self, folder)
        made.update_parameters(local_setup=["prlimit --pid $$ --fsize=5000"])
        return made

    monkeypatch.setattr(slurm.SlurmExecutor, "submitter", limited)
    run = small("arms=[patched]")
    with connected(Placement("slurm", slurm=("cluster=local",)), run) as executor:
        folder = local.start(run, tmp_path, None, executor)
    (arm,) = folder.read_run().arms
    assert arm.state is ArmState.FAILED
    assert "File too large" in arm.message
    assert "resume the run; finished answers are kept" in arm.message
    assert 0 < len(folder.read_samples("gsm8k_canary", "patched")) < 36


class FullDisk:
    """A submitter, and its jobs, on a disk that is full from the second job on."""

    def __init__(self) -> None:
        self.jobs = 0
        self.cancelled = False

    def submit(self, _: slurm.Job) -> FullDisk:
        if self.jobs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.jobs += 1
        return self

    def done(self) -> bool:
        return self.cancelled

    def cancel(self, check: bool) -> None:
        assert not check
        self.cancelled = True


def test_a_disk_too_full_for_another_job_is_said_and_the_others_are_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = FullDisk()
    cluster = slurm.SlurmCluster(disk, Brief.of(small()), tmp_path / "shards", RunFolder(tmp_path))
    cluster.hire("replica 1")
    with pytest.raises(StoreError, match=r"No space left on device\. Free space"):
        cluster.hire("replica 2")
    assert list(cluster.reports(0)) == []

    def no_room(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "touch", no_room)
    cluster.close()
    assert disk.cancelled


def test_the_whole_way_through_slurm_s_own_commands(
    monkeypatch: pytest.MonkeyPatch, whole: RunFolder, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{install(tmp_path)}:{os.environ['PATH']}")
    run = small()
    placement = Placement("slurm", slurm=("partition=short", "time=01:30:00", "job-name=nightly"))
    with connected(placement, run) as executor:
        folder = local.start(run, tmp_path / "results", None, executor)
    assert answers(folder, run) == answers(whole, run)
    assert folder.read_run().provenance["executors"][0]["executor"] == "slurm"
    script = (tmp_path / "jobs" / "1.script").read_text().splitlines()
    asked = {line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")}
    assert not any(option == "job-name=evalharness" for option in asked)
    assert {
        "partition=short",
        "time=01:30:00",
        "job-name=nightly",
        "nodes=1",
        "requeue",
        "signal=USR2@90",
        "open-mode=append",
    } <= asked


def test_a_job_asks_for_the_gpus_of_a_replica(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{install(tmp_path)}:{os.environ['PATH']}")
    run = small("engine={kind: vllm, model: canary-v3, tensor_parallel_size: 4}")
    with connected(Placement("slurm"), run) as executor:
        assert isinstance(executor, slurm.SlurmExecutor)
        text = executor.submitter(tmp_path / "out")._executor._make_submission_file_text("", "")
    assert "#SBATCH --gpus-per-node=4\n" in text


@pytest.mark.parametrize("reason", ["Invalid partition name specified: nowhere", "Requested node configuration"])
def test_what_sbatch_refuses_is_said_in_its_words(reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = install(tmp_path)
    (commands / "sbatch").write_text(f"#!/bin/bash\necho 'sbatch: error: {reason}' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    run = small("arms=[patched]")
    with connected(Placement("slurm"), run) as executor:
        folder = local.start(run, tmp_path / "results", None, executor)
    (arm,) = folder.read_run().arms
    assert arm.state is ArmState.FAILED
    assert reason in arm.message


def test_without_sbatch_a_run_is_refused_before_it_begins() -> None:
    with pytest.raises(EngineError, match=r"no sbatch on this machine's PATH\. Start the run on a login node"):
        open_and_close(Placement("slurm"))


def test_without_submitit_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(EngineError, match=r"pip install 'evalharness\[slurm\]'"):
        open_and_close(HERE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["partition"], "partition is not KEY=VALUE"),
        (["=gpu"], "is not KEY=VALUE"),
        (["partition="], "is not KEY=VALUE"),
        (["partition=a", "partition=b"], "partition is given twice"),
        (["nodes=2"], "nodes is not free"),
        (["gpus-per-node=1"], "gpus-per-node is not free"),
        (["cluster=lokal"], "Unknown cluster 'lokal'. Did you mean: local"),
        (["cluster=local", "partition=gpu"], "cluster=local has no use for partition"),
    ],
)
def test_an_option_that_would_not_do_what_it_says_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_and_close(Placement("slurm", slurm=tuple(options)))


def test_what_one_job_cannot_hold_is_refused() -> None:
    spread = "engine={kind: vllm, model: x, tensor_parallel_size: 16, engine_args: {distributed_executor_backend: ray}}"
    with pytest.raises(EngineError, match="one node"):
        open_and_close(HERE, spread)
    with (
        pytest.raises(UsageError, match="nothing to place"),
        connected(HERE, load_spec("endpoint", ["arms=['stock=http://127.0.0.1:1']"])),
    ):
        pass


def open_and_close(placement: Placement, *settings: str) -> None:
    with connected(placement, small(*settings)):
        pass


def killed_at_its_first_answers(run: RunSpec, results: Path) -> RunFolder:
    """A run whose process was killed when its jobs told their first answers; they go on."""
    spec = results / "spec.yaml"
    spec.write_text(yaml.safe_dump(run.model_dump(mode="json")))
    command = [sys.executable, "-m", "evalharness", "run", str(spec), "--out", str(results)]
    process = subprocess.Popen(
        [*command, "--executor", "slurm", "--replicas", "2", "--slurm", "cluster=local"], stdout=subprocess.DEVNULL
    )
    wait_until(lambda: any("\ncompletion" in path.read_text() for path in results.glob("*/shards/1/replica-*/told")))
    process.kill()
    process.wait()
    return RunFolder(next(results.glob("*/run.json")).parent)


def wait_for_the_end_of_orders(shards: Path) -> int:
    """Wait until every job has ended its orders; returns the answers that they told."""
    files = list(shards.glob("replica-*/told"))
    orders = len(list(shards.glob("replica-*/order-*.json")))
    wait_until(lambda: sum(path.read_text().count("\nended") for path in files) == orders)
    return sum(path.read_text().count("\ncompletion") for path in files)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
