"""Disks that fill up or cannot be written, clocks that go back, two writers, and engines that never start."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evalharness.assess import assess
from evalharness.engines.base import Completion, Request
from evalharness.errors import EngineError, RecordError, StoreError
from evalharness.records import ArmState, Outcome
from evalharness.runner import local, session
from evalharness.store import RunFolder, list_runs
from tests.faults.scripted import Scripted, right, small_spec

ROOT = Path(__file__).parents[2]
TASK = "gsm8k_canary"
pytestmark = pytest.mark.usefixtures("scripted")


def keys(folder: RunFolder, arm: str) -> list[tuple[str, int, int]]:
    return sorted(sample.key for sample in folder.read_samples(TASK, arm))


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """What the system says of a write beyond `size` bytes is an error, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [2_000, 9_000, 12_000])
def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_when_there_is_room(tmp_path: Path, room: int) -> None:
    with files_no_larger_than(room), pytest.raises(StoreError, match=r"Cannot write .* Free space"):
        local.start(small_spec(limit=40), tmp_path)
    runs = list_runs(tmp_path)
    if not runs:  # not even run.json found room
        return
    folder = local.resume(RunFolder(runs[0]))
    assert all(len(keys(folder, arm)) == len(set(keys(folder, arm))) == 40 for arm in ("eager", "stock", "patched"))


def test_results_that_cannot_be_written_are_one_clear_error_before_an_engine_starts(
    tmp_path: Path, scripted: type[Scripted]
) -> None:
    with pytest.raises(StoreError, match="--out"):
        local.start(small_spec(), Path("/proc/evalharness"))
    (tmp_path / "file").write_text("{}")
    with pytest.raises(StoreError, match="--out"):
        local.start(small_spec(), tmp_path / "file")
    assert scripted.opened == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        local.start(small_spec(), tmp_path)


def test_a_last_line_cut_short_is_answered_again(tmp_path: Path, scripted: type[Scripted]) -> None:
    folder = local.start(small_spec(), tmp_path)
    path = folder.samples_path(TASK, "stock")
    before = folder.read_samples(TASK, "stock")
    path.write_bytes(path.read_bytes()[:-30])
    scripted.asked.clear()
    local.resume(folder)
    assert len(scripted.asked) == 1
    assert folder.read_samples(TASK, "stock") == before


def test_a_run_whose_samples_are_gone_is_answered_again(tmp_path: Path) -> None:
    folder = local.start(small_spec(), tmp_path)
    shutil.rmtree(folder.path / "samples")
    local.resume(folder)
    assert len(keys(folder, "patched")) == 6


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run_id": 3}'])
def test_a_broken_run_file_is_named(tmp_path: Path, text: str) -> None:
    folder = local.start(small_spec(), tmp_path)
    (folder.path / "run.json").write_text(text)
    with pytest.raises(RecordError, match=r"run\.json"):
        local.resume(folder)


def test_a_clock_that_goes_back_changes_nothing_but_the_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(datetime(2026, 12, 1, tzinfo=UTC) - timedelta(hours=n) for n in range(100))

    class Clock(datetime):
        @classmethod
        def now(cls, _tz: object = None) -> datetime:  # type: ignore[override]
            return next(moments)

    steady = local.start(small_spec(), tmp_path / "steady")
    monkeypatch.setattr(local, "datetime", Clock)
    monkeypatch.setattr(session, "datetime", Clock)
    folder = local.start(small_spec(), tmp_path / "back")
    folder.samples_path(TASK, "stock").write_bytes(b"")
    local.resume(folder)
    run = folder.read_run()
    assert run.finished is not None
    assert run.finished < run.created
    assert all(arm.seconds >= 0 for arm in run.arms)
    assert run.timings["total"] >= 0
    assert assess(folder).verdict == assess(steady).verdict


def test_two_runs_begun_in_the_same_second_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, _tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2026, 12, 1, tzinfo=UTC)

    monkeypatch.setattr(local, "datetime", Clock)
    folders = [local.start(small_spec(), tmp_path) for _ in range(2)]
    assert len({folder.path for folder in folders}) == 2
    assert all(len(keys(folder, "eager")) == 6 for folder in folders)


def test_a_second_process_that_resumes_the_same_run_is_refused(tmp_path: Path) -> None:
    folder = local.start(small_spec(), tmp_path)
    holder = (
        "import sys, time; from pathlib import Path; from evalharness.store import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holder, str(folder.path)], stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match="Another process is writing"):
            local.resume(folder)
        other.kill()
    local.resume(folder)  # a lock dies with its holder


def test_a_resumed_run_of_another_model_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    folder = local.start(small_spec(engine={"kind": "emulated", "model": str(model)}), tmp_path / "results")
    (model / "config.json").write_text('{"other": 1}')
    with pytest.raises(RecordError, match="model changed since it began"):
        local.resume(folder)


# --- circuit breaker ----------------------------------------------------------------------------------------------


def fails_in_stock(arm: str, request: Request) -> Completion:
    if arm == "stock":
        return Completion(request.id, "", (), "error", 0, 0, 0.0, error="CUDA error: an illegal memory access")
    return right(arm, request)


def test_an_arm_that_fails_the_same_way_stops_and_the_others_go_on(tmp_path: Path, scripted: type[Scripted]) -> None:
    scripted.answer = staticmethod(fails_in_stock)
    folder = local.start(small_spec(limit=100), tmp_path)
    states = {arm.name: arm.state for arm in folder.read_run().arms}
    assert states == {"eager": ArmState.DONE, "stock": ArmState.FAILED, "patched": ArmState.DONE}
    assert sum(arm == "stock" for arm, _ in scripted.asked) == session.IDENTICAL_FAILURES
    verdict = assess(folder).verdict
    assert verdict.outcome is Outcome.ERROR
    assert "stopped after 8 identical failures: CUDA error: an illegal memory access" in " ".join(verdict.reasons)


def test_failures_that_differ_or_are_rare_do_not_stop_an_arm(tmp_path: Path, scripted: type[Scripted]) -> None:
    def sometimes(arm: str, request: Request) -> Completion:
        number = len(Scripted.asked)
        if number % 3:
            return Completion(request.id, "", (), "error", 0, 0, 0.0, error=f"timeout {number % 2}")
        return right(arm, request)

    scripted.answer = staticmethod(sometimes)
    folder = local.start(small_spec("eager", limit=60), tmp_path)
    assert folder.read_run().arms[0].state is ArmState.DONE
    assert len(scripted.asked) == 60


def test_an_engine_that_never_starts_is_tried_twice_and_no_more(tmp_path: Path, scripted: type[Scripted]) -> None:
    def refuse() -> None:
        raise EngineError("No GPU is visible.", "Set CUDA_VISIBLE_DEVICES.")

    scripted.on_open = staticmethod(refuse)
    folder = local.start(small_spec("eager", "stock", "patched", "native", "eager#2"), tmp_path)
    assert scripted.opened == session.IDENTICAL_STARTS
    arms = folder.read_run().arms
    assert {arm.state for arm in arms} == {ArmState.FAILED}
    assert "not started again after 2 identical failures: No GPU is visible." in arms[-1].message
    verdict = assess(folder).verdict
    assert verdict.outcome is Outcome.ERROR
    assert any("No GPU is visible" in reason for reason in verdict.reasons)


def test_records_of_a_failed_run_are_strict_json(tmp_path: Path, scripted: type[Scripted]) -> None:
    def endless(_arm: str, request: Request) -> Completion:
        return Completion(request.id, "#### 1", (1,), "stop", 1, 1, float("inf"))

    scripted.answer = staticmethod(endless)
    folder = local.start(small_spec(), tmp_path)
    for file in folder.path.rglob("*.json*"):
        for text in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            json.loads(text, parse_constant=pytest.fail)
