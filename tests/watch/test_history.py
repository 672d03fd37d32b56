"""The index: only what changed is read again, and no folder breaks it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from evalharness.watch import history
from evalharness.watch.history import INDEX, Entry, read_history, readable


@pytest.fixture
def few(nights120: Path, tmp_path: Path) -> Path:
    """The last six nights in a folder of their own."""
    results = tmp_path / "results"
    for name in sorted(p.name for p in nights120.iterdir() if p.is_dir())[-6:]:
        shutil.copytree(nights120 / name, results / name)
    return results


def by_folder(entries: list[Entry]) -> dict[str, Entry]:
    return {entry.folder: entry for entry in entries}


def test_every_figure_of_a_run_is_indexed(few: Path) -> None:
    entry = read_history(few)[-1]
    comparison = json.loads((few / entry.folder / "comparison.json").read_text())
    wanted = {(t["task"], s["arm"]): s["value"] for t in comparison["tasks"] for s in t["scores"]}
    assert {(s.task, s.arm): s.value for s in entry.scores} == wanted
    assert entry.verdict == comparison["verdict"]["outcome"]
    assert all(s.tokens_per_second for s in entry.scores)
    assert {len(s.marks or "") for s in entry.of("gsm8k_canary")} == {250}


def test_the_index_may_be_deleted_or_damaged_at_any_time(few: Path) -> None:
    first = read_history(few)
    assert (few / INDEX).exists()
    assert read_history(few) == first
    (few / INDEX).write_bytes(b"PAR1 nonsense")
    assert read_history(few) == first
    (few / INDEX).unlink()
    assert read_history(few) == first


def test_only_a_changed_folder_is_read_again(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = read_history(few)
    changed = few / entries[2].folder / "comparison.json"
    os.utime(changed, ns=(1, 1))
    read: list[str] = []
    original = history._read
    monkeypatch.setattr(history, "_read", lambda p, folder, now: read.append(folder) or original(p, folder, now))
    read_history(few)
    assert read == [entries[2].folder]


def test_a_folder_that_cannot_be_written_is_read_all_the_same(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(history, "replace_file", refuse)
    assert len(readable(read_history(few))) == 6
    assert not (few / INDEX).exists()


NEWER = {"schema_version": 999}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no run.json"),
        ({"run.json": ""}, "not valid JSON"),
        ({"run.json": '{"run_id": "x"'}, "not valid JSON"),
        ({"run.json": "[]"}, "not a Run"),
        ({"run.json": json.dumps(NEWER)}, "schema version 999"),
        ({"run.json": "{}"}, "not a Run"),
        ({"run.json": b"\xff\xfe"}, "cannot be read"),
        ({"run.json": "[" * 100_000}, "run.json"),
        ({"notes.txt": "somebody else's folder"}, "no run.json"),
    ],
)
def test_half_written_foreign_and_newer_folders_are_listed_as_such(
    few: Path, files: dict[str, str | bytes], says: str
) -> None:
    odd = few / "20261201T000000Z-odd-00000000"
    odd.mkdir()
    for name, text in files.items():
        (odd / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    entry = by_folder(read_history(few))[odd.name]
    assert entry.state == "unreadable"
    assert says in entry.problem
    assert len(readable(read_history(few))) == 6


def test_records_that_lie_are_not_believed(few: Path) -> None:
    first, second, third = sorted(p for p in few.iterdir() if p.is_dir())[:3]
    (first / "run.json").write_text((second / "run.json").read_text())
    run = json.loads((third / "run.json").read_text())
    (third / "run.json").write_text(json.dumps(run | {"created": "yesterday"}))
    found = by_folder(read_history(few))
    assert "another run" in found[first.name].problem
    assert found[third.name].state == "unreadable"


@pytest.mark.parametrize("key", ["created", "finished"])
@pytest.mark.parametrize("at", ["yesterday", "0001-01-01T00:00:00+05:00"])
def test_a_time_that_is_none_is_named(few: Path, key: str, at: str) -> None:
    path = next(few.glob("*/run.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: at}))
    entry = by_folder(read_history(few))[path.parent.name]
    assert entry.state == "unreadable"
    assert "run.json holds what no run has" in entry.problem


def test_a_time_without_a_zone_is_utc(few: Path) -> None:
    path = next(few.glob("*/run.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"finished": "2026-12-01T18:20:10"}))
    assert by_folder(read_history(few))[path.parent.name].finished == "2026-12-01T18:20:10+00:00"


@pytest.mark.parametrize("count", [-1, 10**30])
def test_counts_beyond_reason_are_refused_and_the_index_stays(few: Path, count: int) -> None:
    path = min(p for p in few.iterdir() if p.is_dir()) / "comparison.json"
    comparison = json.loads(path.read_text())
    comparison["tasks"][0]["scores"][0]["n"] = count
    path.write_text(json.dumps(comparison))
    assert by_folder(read_history(few))[path.parent.name].state == "unreadable"
    assert (few / INDEX).exists()


def test_text_that_is_no_unicode_is_refused(few: Path) -> None:
    path = min(p for p in few.iterdir() if p.is_dir()) / "run.json"
    run = json.loads(path.read_text())
    run["spec"]["engine"]["model"] = "\ud800"
    path.write_text(json.dumps(run))
    assert by_folder(read_history(few))[path.parent.name].state == "unreadable"


def test_the_index_survives_the_deletion_of_every_run(few: Path) -> None:
    read_history(few)
    for folder in [p for p in few.iterdir() if p.is_dir()]:
        shutil.rmtree(folder)
    assert read_history(few) == []
    assert read_history(few) == []


def test_a_comparison_of_a_newer_schema_is_named(few: Path) -> None:
    folder = min(p for p in few.iterdir() if p.is_dir())
    (folder / "comparison.json").write_text(json.dumps(NEWER))
    assert "schema version 999" in by_folder(read_history(few))[folder.name].problem


def test_a_published_copy_counts_once(few: Path) -> None:
    name = min(p.name for p in few.iterdir() if p.is_dir())
    shutil.copytree(few / name, few / "published" / name)
    entries = [entry for entry in readable(read_history(few)) if entry.run_id == name]
    assert [entry.folder for entry in entries] == [f"published/{name}"]
