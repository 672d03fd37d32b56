"""The store: whole lines only, atomic files, one writer, newer and broken records refused by name."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from evalharness.errors import RecordError, StoreError, UnknownName
from evalharness.records import ArmEvidence, Cause, DescriptorEvidence, Sample
from evalharness.store import RunFolder, decode, encode, find_run, list_runs
from tests.factories import make_run, make_sample


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, make_run())[0]


def test_a_run_is_named_by_time_spec_and_fingerprint(tmp_path: Path) -> None:
    first, run = RunFolder.create(tmp_path, make_run())
    assert run.run_id == first.path.name == "20261201T120000Z-test-abababab"
    assert first.read_run() == run


def test_two_runs_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    names = {RunFolder.create(tmp_path, make_run())[1].run_id for _ in range(3)}
    assert len(names) == 3
    assert [path.name for path in list_runs(tmp_path)] == sorted(names)


def test_samples_come_back_as_written(folder: RunFolder) -> None:
    written = [make_sample(doc_id=i, response="été \u202e<b>\n" * i) for i in range(3)]
    folder.append(written)
    folder.append([make_sample(arm="eager#2")])
    assert folder.read_samples("gsm8k_canary", "eager") == written
    assert len(folder.read_samples("gsm8k_canary", "eager#2")) == 1
    assert folder.read_samples("gsm8k_canary", "stock") == []


def test_an_answer_replaces_a_lost_request_and_never_the_other_way(folder: RunFolder) -> None:
    lost = make_sample(cause=Cause.ERROR, finish_reason="error", error="timeout")
    folder.append([lost, make_sample(), lost])
    assert [s.cause for s in folder.read_samples("gsm8k_canary", "eager")] == [Cause.CORRECT]


@pytest.mark.parametrize("length", [1, 40, 200_000])
def test_a_line_cut_by_a_crash_is_dropped_and_the_next_append_is_whole(folder: RunFolder, length: int) -> None:
    folder.append([make_sample(doc_id=0), make_sample(doc_id=1)])
    path = folder.samples_path("gsm8k_canary", "eager")
    with path.open("a") as file:
        file.write('{"task": "' + "x" * length)
    assert len(folder.read_samples("gsm8k_canary", "eager")) == 2
    folder.append([make_sample(doc_id=2)])
    assert [s.doc_id for s in folder.read_samples("gsm8k_canary", "eager")] == [0, 1, 2]


def test_a_corrupted_line_is_named_by_file_and_number(folder: RunFolder) -> None:
    folder.append([make_sample(doc_id=i) for i in range(3)])
    path = folder.samples_path("gsm8k_canary", "eager")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:50], lines[2]]) + "\n")
    with pytest.raises(RecordError, match=r"eager\.jsonl line 2"):
        folder.read_samples("gsm8k_canary", "eager")


def test_a_line_of_another_arm_is_refused(folder: RunFolder) -> None:
    folder.append([make_sample(arm="stock")])
    folder.samples_path("gsm8k_canary", "stock").rename(folder.samples_path("gsm8k_canary", "eager"))
    with pytest.raises(RecordError, match="belongs to gsm8k_canary/stock"):
        folder.read_samples("gsm8k_canary", "eager")


def test_a_newer_schema_is_refused_and_an_unversioned_one_still_loads() -> None:
    line = json.loads(encode(make_sample()))
    assert decode(Sample, json.dumps({k: v for k, v in line.items() if k != "schema_version"}), "x") == make_sample()
    with pytest.raises(RecordError, match="schema version 99"):
        decode(Sample, json.dumps({**line, "schema_version": 99}), "x")


def test_records_are_strict_json() -> None:
    text = encode(make_sample(seconds=float("inf"), scores={"exact_match": float("nan")}))
    assert json.loads(text, parse_constant=pytest.fail)["seconds"] is None


def test_evidence_comes_back_by_arm(folder: RunFolder) -> None:
    evidence = ArmEvidence(
        "eager#2", "emulated", "1", {"runner": "V2"}, {"runner": "V1"}, (DescriptorEvidence("b=1", 1, True),)
    )
    folder.write_evidence(evidence)
    assert folder.read_evidence() == {"eager#2": evidence}
    assert evidence.mismatches == ("runner",)


def test_a_second_writer_is_refused(folder: RunFolder) -> None:
    with folder.locked(), pytest.raises(StoreError, match="Another process"), RunFolder(folder.path).locked():
        pass


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "a/b", "", ".hidden", "a\0b"])
def test_a_task_name_cannot_leave_the_folder(folder: RunFolder, name: str) -> None:
    with pytest.raises(RecordError, match="cannot be a file name"):
        folder.append([make_sample(task=name)])


def test_a_results_path_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        RunFolder.create(tmp_path / "file" / "results", make_run())


def test_an_interrupted_replacement_leaves_the_old_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = folder.read_run()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        folder.write_run(replace(before, name="other"))
    assert folder.read_run() == before


def test_a_replacement_that_fails_leaves_nothing_behind(folder: RunFolder) -> None:
    (folder.path / "comparison.md").mkdir()
    before = sorted(folder.path.rglob("*"))
    with pytest.raises(StoreError, match="Cannot write"):
        folder.write_text("comparison.md", "new")
    assert sorted(folder.path.rglob("*")) == before


def test_runs_are_found_by_path_id_prefix_or_latest(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, make_run())[0].path
    second = RunFolder.create(tmp_path, make_run(name="other", created="2026-12-02T12:00:00+00:00"))[0].path
    assert find_run(tmp_path, str(first)).path == first
    assert find_run(tmp_path, second.name).path == second
    assert find_run(tmp_path, "20261202").path == second
    assert find_run(tmp_path, "latest").path == second
    with pytest.raises(UnknownName, match="run '2026'"):
        find_run(tmp_path, "2026")
