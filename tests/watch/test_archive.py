"""Many nights, a results folder each, asked without opening a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evalharness.cli import app
from evalharness.errors import EvalHarnessError, RecordError, UsageError
from evalharness.reports.dashboard.exports import history_rows
from evalharness.watch.archive import Wanted, archived_rows, night_folders
from evalharness.watch.history import INDEX, read_history


@pytest.fixture(scope="module")
def archive(nights120: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic history as three nights, newest last; a fourth folder has no index."""
    root = tmp_path_factory.mktemp("archive")
    runs = sorted(path for path in nights120.iterdir() if path.is_dir() and not path.name.startswith("."))
    for number in range(3):
        for run in runs[number * 20 : number * 20 + 20]:
            shutil.copytree(run, root / f"night{number}" / run.name)
        (root / f"night{number}" / f"broken{number}").mkdir()
        read_history(root / f"night{number}")
    (root / "unrelated").mkdir()
    return root


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(),
        Wanted(task="gsm8k_canary"),
        Wanted(task="gsm8k_canary", arm="patched"),
        Wanted(model="nobody's"),
        Wanted(is_bad=True),
        Wanted(task="aime25_canary", is_bad=True),
    ],
    ids=str,
)
def test_an_index_says_what_the_history_says(archive: Path, wanted: Wanted) -> None:
    for night in night_folders(archive, 90):
        expected = [row for row in history_rows(read_history(night)) if wanted.takes(row)]
        found = list(archived_rows(night, wanted))

        def comparable(rows: list[dict[str, object]]) -> list[str]:
            return sorted(json.dumps(row, sort_keys=True) for row in rows)

        assert comparable(found) == comparable(expected)


def test_a_broken_folder_is_among_the_failed(archive: Path) -> None:
    found = list(archived_rows(archive / "night1", Wanted(is_bad=True)))
    assert "broken1" in {row["run_id"] for row in found}


def test_no_run_is_opened(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    shutil.copy(archive / "night0" / INDEX, tmp_path / "night" / INDEX)
    wanted = Wanted(task="gsm8k_canary", arm="eager")
    assert list(archived_rows(tmp_path / "night", wanted)) == list(archived_rows(archive / "night0", wanted)) != []


def test_a_night_without_runs_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    read_history(tmp_path)
    (tmp_path / "gone").rmdir()
    read_history(tmp_path)
    assert list(archived_rows(tmp_path, Wanted())) == []


def test_the_newest_nights_are_taken(archive: Path) -> None:
    assert [night.name for night in night_folders(archive, 2)] == ["night1", "night2"]
    assert [night.name for night in night_folders(archive, 90)] == ["night0", "night1", "night2"]
    with pytest.raises(UsageError, match="no results folder with an index"):
        night_folders(archive / "unrelated", 90)


def test_an_index_that_cannot_be_read_is_named(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    for harm in (b"", b"PAR1", (archive / "night0" / INDEX).read_bytes()[:500]):
        (tmp_path / "night" / INDEX).write_bytes(harm)
        with pytest.raises(RecordError, match=r"night/\.history\.parquet cannot be read") as refused:
            list(archived_rows(tmp_path / "night", Wanted()))
        assert "evalharness history --out" in refused.value.remedy


def test_an_index_of_another_version_is_refused(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.watch.archive.FORMAT", b"other fields")
    with pytest.raises(RecordError, match="written by another version"):
        list(archived_rows(archive / "night0", Wanted()))


def test_the_command_narrows_one_folder_and_many_nights_alike(archive: Path) -> None:
    def asked(*options: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(app, ["history", "--json", *options])
        assert done.exit_code == 0, done.exception
        rows: list[dict[str, object]] = json.loads(done.output)
        return rows

    narrow = ["--task", "gsm8k_canary", "--arm", "patched"]
    many = asked("--results", str(archive), "--nights", "2", *narrow)
    one = [row for number in (1, 2) for row in asked("--results", str(archive / f"night{number}"), *narrow)]
    assert [row["run_id"] for row in many] == [row["run_id"] for row in one] != []
    assert [row["value"] for row in many] == [row["value"] for row in one]
    assert {row["arm"] for row in many} == {"patched"}
    failed = asked("--results", str(archive), "--nights", "3", "--failed")
    assert {row.get("task_verdict", "-") for row in failed} <= {"FAIL", "INVALID", "ERROR", "-"}


def test_a_folder_without_nights_is_an_error_in_words(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["history", "--results", str(tmp_path), "--nights", "5"])
    assert isinstance(refused.exception, EvalHarnessError)
