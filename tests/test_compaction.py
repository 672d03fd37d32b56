"""A compacted run loses nothing, reads the same everywhere, and is as hard to tamper with as before."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from evalharness import columnar
from evalharness.answers import read_table
from evalharness.assess import read_stored
from evalharness.cli import app
from evalharness.compaction import compact, restore
from evalharness.errors import EvalHarnessError, RecordError, StoreError
from evalharness.manifest import write_manifest
from evalharness.records import Cause, Sample
from evalharness.reports import SIGNOFF, write_tables
from evalharness.rescore import rescore_run
from evalharness.runner import local
from evalharness.schedule.retention import prune
from evalharness.seal import code_version, seal
from evalharness.store import RunFolder, encode
from evalharness.table import SampleTable
from evalharness.verify import verify, with_scores
from evalharness.watch.history import Entry
from evalharness.watch.marks import read_marks
from tests.factories import make_run, make_sample
from tests.stored_runs import stored_run

STOCK = "samples/gsm8k_canary/stock.jsonl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A sealed run with hostile answers."""
    folder = stored_run(tmp_path_factory.mktemp("original"), {"gsm8k_canary": (60, 1), "aime25_canary": (10, 4)})
    stored = read_stored(folder)
    seal(folder, stored, stored.comparison, SIGNOFF)
    return folder


@pytest.fixture
def folder(original: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(original.path, tmp_path / original.path.name)
    return RunFolder(tmp_path / original.path.name)


def contents(folder: RunFolder) -> dict[str, bytes]:
    """Every samples file as it would be on disk."""
    return {name: b"".join(line + b"\n" for line in folder.sample_lines(name)) for name in folder.sample_files()}


def written(folder: RunFolder) -> dict[str, bytes]:
    files = folder.path.glob("samples/*/*")
    return {path.relative_to(folder.path).as_posix(): path.read_bytes() for path in files}


def finished(results: Path, *lines: bytes) -> RunFolder:
    """A finished run whose eager answers are `lines`."""
    folder, run = RunFolder.create(results, make_run())
    folder.write_run(replace(run, finished="2026-12-01T13:00:00+00:00"))
    folder.write_bytes("samples/gsm8k_canary/eager.jsonl", b"".join(line + b"\n" for line in lines))
    return folder


# --- nothing is lost ----------------------------------------------------------------------------------------


def test_one_file_instead_of_many_and_every_byte_comes_back(folder: RunFolder) -> None:
    before = written(folder)
    done = compact(folder)
    assert not (folder.path / "samples").exists()
    assert contents(folder) == before
    assert done.samples == 300
    assert done.after == folder.packed.stat().st_size < done.before == sum(map(len, before.values()))
    restore(folder)
    assert written(folder) == before
    assert not folder.packed.exists()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
samples = st.builds(
    make_sample,
    doc_id=st.integers(0, 2**40),
    repeat=st.integers(0, 9),
    doc_hash=texts,
    response=texts,
    reasoning=texts,
    target=texts,
    token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=6).map(tuple),
    seconds=st.floats(0, 1e6) | st.sampled_from([0.0, -0.0, 5e-324, 1e-5, 1e16, 123456789.123]),
    scores=st.dictionaries(texts, st.floats(-1, 1), max_size=3),
    extracted=st.dictionaries(texts, st.none() | texts, max_size=3),
    flags=st.lists(texts, max_size=3).map(tuple),
    error=st.none() | texts,
    cause=st.sampled_from(list(Cause)),
)


@given(st.lists(samples, max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sample_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, rows: list[Sample]) -> None:
    folder = finished(tmp_path_factory.mktemp("any"), *(encode(row).encode() for row in rows))
    before, read = written(folder), folder.read_samples("gsm8k_canary", "eager")
    compact(folder)
    assert contents(folder) == before
    assert folder.read_samples("gsm8k_canary", "eager") == read
    restore(folder)
    assert written(folder) == before


PLAIN = json.loads(encode(make_sample()))


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(PLAIN),  # blanks after commas and colons
        json.dumps(PLAIN | {"response": "\u00e9t\u00e9"}, separators=(",", ":")),  # escapes
        json.dumps({k: PLAIN[k] for k in sorted(PLAIN)}, separators=(",", ":")),
        json.dumps({k: v for k, v in PLAIN.items() if k not in {"schema_version", "reasoning"}}),
        json.dumps(PLAIN | {"from_a_later_version": [1, {"a": None}]}),
        encode(make_sample()).replace('"seconds":0.5', '"seconds":1'),
        encode(make_sample()).replace('"seconds":0.5', '"seconds":5e-1'),
        encode(make_sample()).replace('"exact_match":1.0', '"exact_match":null'),
        encode(make_sample()).replace('"exact_match":1.0', '"exact_match":NaN'),
        encode(make_sample()).replace('"repeat":0', '"repeat":0,"repeat":0'),
        encode(make_sample()) + "\r",
    ],
    ids=str,
)
def test_a_line_of_another_make_keeps_its_bytes(tmp_path: Path, line: str) -> None:
    folder = finished(tmp_path, encode(make_sample(doc_id=7)).encode(), line.encode())
    before = written(folder)
    compact(folder)
    assert contents(folder) == before


def test_an_answer_still_replaces_a_lost_request(tmp_path: Path) -> None:
    lost = make_sample(cause=Cause.ERROR, finish_reason="error", error="timeout")
    folder = finished(tmp_path, *(encode(row).encode() for row in (lost, make_sample(), lost)))
    compact(folder)
    assert [s.cause for s in folder.read_samples("gsm8k_canary", "eager")] == [Cause.CORRECT]


def test_files_of_more_lines_than_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "ROWS", 4)
    folder = stored_run(tmp_path, {"gsm8k_canary": (11, 1), "aime25_canary": (3, 2)})
    folder.write_bytes("samples/gsm8k_canary/empty.jsonl", b"")
    before = written(folder)
    compact(folder)
    assert contents(folder) == before
    assert columnar.read_columns(folder.packed, STOCK, ("doc_id",))["doc_id"].to_pylist() == list(range(11))
    assert columnar.read_columns(folder.packed, "samples/gsm8k_canary/empty.jsonl", ("doc_id",)).num_rows == 0


# --- columns are read instead of samples ---------------------------------------------------------------------


def same_tables(one: SampleTable, two: SampleTable) -> bool:
    plain = [f.name for f in fields(one) if f.name not in {"scores", "tokens"}]
    tokens = [[t.flat[a : a + n] for a, n in zip(t.start, t.length, strict=True)] for t in (one.tokens, two.tokens)]
    return (
        all(np.array_equal(getattr(one, name), getattr(two, name)) for name in plain)
        and one.scores.keys() == two.scores.keys()
        and all(np.array_equal(one.scores[m], two.scores[m], equal_nan=True) for m in one.scores)
        and all(map(np.array_equal, *tokens))
    )


@given(st.lists(samples, max_size=6, unique_by=lambda sample: sample.key))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_samples_give_the_same_columns(tmp_path_factory: pytest.TempPathFactory, rows: list[Sample]) -> None:
    folder = finished(tmp_path_factory.mktemp("any"), *(encode(row).encode() for row in rows))
    compact(folder)
    assert same_tables(read_table(folder, "gsm8k_canary", "eager"), SampleTable.from_samples(rows))


def test_a_comparison_makes_no_sample(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_tables(read_stored(folder).comparison)
    compact(folder)
    monkeypatch.setattr("evalharness.store._sample", None)
    assert write_tables(read_stored(folder).comparison) == before


@pytest.mark.parametrize("row", [make_sample(cause=Cause.ERROR), make_sample(response="asked again")])
def test_which_of_two_answers_counts_does_not_change(tmp_path: Path, row: Sample) -> None:
    folder = finished(tmp_path, *(encode(one).encode() for one in (make_sample(), row)))
    before = read_table(folder, "gsm8k_canary", "eager")
    compact(folder)
    assert same_tables(read_table(folder, "gsm8k_canary", "eager"), before)


@pytest.mark.parametrize("line", [
    encode(make_sample(arm="stock")), encode(make_sample(task="gsm8k")),
    encode(make_sample()).replace('"target":"2"', '"target":null'),
    encode(make_sample()).replace('"exact_match":1.0', '"exact_match":null'),
    encode(make_sample()).replace('"cause":"correct"', '"cause":"luck"'),
    encode(make_sample()).replace('"schema_version":1', '"schema_version":99'),
], ids=["arm", "task", "target", "score", "cause", "version"])  # fmt: skip
def test_what_is_refused_as_a_line_is_refused_as_columns(tmp_path: Path, line: str) -> None:
    folder = finished(tmp_path, encode(make_sample(doc_id=7)).encode(), line.encode())
    with pytest.raises(RecordError) as before:
        read_table(folder, "gsm8k_canary", "eager")
    compact(folder)
    with pytest.raises(RecordError) as after:
        read_table(folder, "gsm8k_canary", "eager")
    assert str(after.value) == str(before.value)


def test_the_index_marks_a_packed_run_alike(original: RunFolder, folder: RunFolder) -> None:
    compact(folder)
    for arm in ("eager", "stock"):
        assert read_marks(folder, "aime25_canary", arm) == read_marks(original, "aime25_canary", arm) != ""


# --- it reads the same --------------------------------------------------------------------------------------


def test_it_compares_reports_and_verifies_the_same(original: RunFolder, folder: RunFolder) -> None:
    compact(folder)
    plain, packed = read_stored(original), read_stored(folder)
    for task, arms in plain.samples.items():
        assert {arm: list(packed.samples[task][arm]) for arm in arms} == {arm: list(arms[arm]) for arm in arms}
    assert write_tables(packed.comparison) == write_tables(plain.comparison)
    found = verify(folder)
    assert found == verify(original)
    assert found.problems == ()


def test_sealing_it_again_changes_nothing(original: RunFolder, folder: RunFolder) -> None:
    compact(folder)
    stored = read_stored(folder)
    assert seal(folder, stored, stored.comparison, SIGNOFF) == []
    assert folder.read_text("manifest.json") == original.read_text("manifest.json")


def test_it_is_rescored_the_same(original: RunFolder, folder: RunFolder) -> None:
    compact(folder)
    assert with_scores(verify(folder), folder) == with_scores(verify(original), original)
    again, results = rescore_run(folder)
    assert sum(result.n for result in results) == 300
    assert len(again.read_samples("gsm8k_canary", "stock")) == 60


def test_other_tools_read_its_columns(folder: RunFolder) -> None:
    compact(folder)
    table = pq.read_table(folder.packed)
    assert set(table["arm"].to_pylist()) == {"eager", "stock", "patched"}
    assert table["line"].null_count == len(table) == 300


def test_retention_deletes_packed_answers_too(folder: RunFolder) -> None:
    compact(folder)
    entry = Entry(folder.path.name, "", "compared", run_id=folder.path.name)
    assert prune(folder.path.parent, [entry], datetime.now(UTC)) == [folder.path.name]
    with pytest.raises(RecordError, match="were pruned"):
        read_stored(folder)


# --- what was changed is named ------------------------------------------------------------------------------


def change(folder: RunFolder, column: str, row: int, value: object) -> None:
    """Rewrite the Parquet file with one other value, as a forger would."""
    table = pq.read_table(folder.packed)
    values = table[column].to_pylist()
    values[row] = value
    field = table.schema.field(column)
    forged = table.set_column(table.schema.names.index(column), field, pa.array(values, field.type))
    pq.write_table(forged, folder.packed)


@pytest.mark.parametrize(
    ("column", "value"),
    [("response", "x"), ("scores", [("exact_match", 1.0)]), ("token_ids", [5]), ("cause", "correct"), ("seconds", 9.0)],
)
def test_a_forged_value_is_named_with_its_document(folder: RunFolder, column: str, value: object) -> None:
    compact(folder)
    parts = columnar.read_parts(folder.packed)
    change(folder, column, parts[STOCK].first + 16, value)
    assert f"{STOCK} line 17 was changed (document 16, repeat 0)." in verify(folder).problems


def test_a_value_cannot_hide_behind_a_kept_line(folder: RunFolder) -> None:
    """The columns of a row that keeps its line decide nothing."""
    compact(folder)
    row = columnar.read_parts(folder.packed)[STOCK].first
    honest = next(folder.sample_lines(STOCK))
    before = write_tables(read_stored(folder).comparison)
    change(folder, "line", row, honest)
    change(folder, "scores", row, [("exact_match", 1.0)])
    assert verify(folder).problems == ()
    assert write_tables(read_stored(folder).comparison) == before


def test_a_resealed_forgery_contradicts_the_tables(folder: RunFolder) -> None:
    compact(folder)
    change(folder, "scores", columnar.read_parts(folder.packed)[STOCK].first, [("exact_match", 1.0)])
    write_manifest(folder, folder.read_run().run_id, code_version())
    assert any("stock" in problem for problem in verify(folder).problems)


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "missing", "note"])
def test_a_damaged_file_is_named_and_nothing_else_happens(folder: RunFolder, damage: str) -> None:
    compact(folder)
    data = folder.packed.read_bytes()
    if damage == "missing":
        folder.packed.unlink()
    elif damage == "note":
        table = pq.read_table(folder.packed)
        pq.write_table(table.replace_schema_metadata({}), folder.packed)
    else:
        harm = {"cut": data[: len(data) // 2], "empty": b"", "garbage": bytes(reversed(data))}
        folder.packed.write_bytes(harm[damage])
    problems = "\n".join(verify(folder).problems)
    assert ("is missing" if damage == "missing" else "samples.parquet") in problems


def test_damage_inside_a_column_is_an_error_in_words(folder: RunFolder) -> None:
    compact(folder)
    data = bytearray(folder.packed.read_bytes())
    data[200:400] = b"\xff" * 200
    folder.packed.write_bytes(data)
    with pytest.raises(RecordError, match=r"samples\.parquet cannot be read"):
        contents(folder)


def test_a_flipped_bit_is_never_read_as_another_answer(folder: RunFolder) -> None:
    before = written(folder)
    compact(folder)
    data = folder.packed.read_bytes()
    refused = 0
    for at in range(4, len(data), len(data) // 60):
        folder.packed.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            assert contents(folder) == before
        except RecordError:
            refused += 1
    assert refused > 30


def test_a_missing_column_is_an_error_in_words(folder: RunFolder) -> None:
    compact(folder)
    pq.write_table(pq.read_table(folder.packed).drop_columns(["flags"]), folder.packed)
    with pytest.raises(RecordError, match=r'samples\.parquet cannot be read: .*"flags"'):
        read_table(folder, "gsm8k_canary", "eager")


def test_a_later_format_is_refused_by_name(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(columnar, "FORMAT", 99)
        compact(folder)
    with pytest.raises(RecordError, match="has format 99"):
        folder.read_samples("gsm8k_canary", "stock")


# --- crashes ------------------------------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from pathlib import Path
from evalharness.compaction import compact
from evalharness.store import RunFolder
left = int(sys.argv[2])
def step(done):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
compact(RunFolder(Path(sys.argv[1])), step)
"""


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 7])  # written, packed, six files removed
def test_a_kill_at_any_step_loses_nothing_and_the_next_one_goes_on(folder: RunFolder, steps: int) -> None:
    before = written(folder)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder.path), str(steps)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert contents(folder) == before
    assert verify(folder).problems == ()
    compact(folder)
    assert contents(folder) == before
    assert [path.name for path in folder.path.rglob(".*.tmp")] == []
    assert not (folder.path / "samples").exists()


def test_twice_is_once(folder: RunFolder) -> None:
    compact(folder)
    packed = folder.packed.read_bytes()
    again = compact(folder)
    assert again.before == again.after
    assert folder.packed.read_bytes() == packed


def test_restoring_what_was_never_packed_changes_nothing(folder: RunFolder) -> None:
    before = written(folder)
    done = restore(folder)
    assert (done.samples, done.before) == (300, done.after)
    assert written(folder) == before


def test_a_packed_file_that_is_not_the_loose_one_is_packed_again(folder: RunFolder) -> None:
    before = written(folder)
    compact(folder)
    change(folder, "response", 0, "forged while both were there")
    for name in list(before)[:2]:
        folder.write_bytes(name, before[name])
    lost = next(iter(sorted(before)))
    folder.write_bytes(lost, before[lost])
    compact(folder)
    assert contents(folder) == before


def test_a_file_that_would_not_come_back_is_left_as_it_is(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(folder)
    monkeypatch.setattr(columnar, "_lines", lambda table: iter([b"{}"] * table.num_rows))
    with pytest.raises(StoreError, match="would lose something"):
        compact(folder)
    assert written(folder) == before
    assert not folder.packed.exists()


# --- refusals -----------------------------------------------------------------------------------------------


def unfinished(folder: RunFolder) -> None:
    folder.write_run(replace(folder.read_run(), finished=None))


def cut_short(folder: RunFolder) -> None:
    with (folder.path / STOCK).open("ab") as file:
        file.write(b'{"task":')


def no_sample(folder: RunFolder) -> None:
    with (folder.path / STOCK).open("ab") as file:
        file.write(b'{"doc_id": "x"}\n')


def no_json(folder: RunFolder) -> None:
    with (folder.path / STOCK).open("ab") as file:
        file.write(b"[1]\n")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (unfinished, "is not finished"),
        (cut_short, "would lose something"),
        (no_sample, "stock.jsonl line 61 is no sample"),
        (no_json, "stock.jsonl line 61 is no sample"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_words(
    folder: RunFolder, harm: Callable[[RunFolder], None], words: str
) -> None:
    harm(folder)
    before = written(folder)
    with pytest.raises(EvalHarnessError, match=words) as refused:
        compact(folder)
    assert refused.value.remedy
    assert written(folder) == before
    assert not folder.packed.exists()


def test_a_run_that_is_being_written_is_refused(folder: RunFolder) -> None:
    with folder.locked(), pytest.raises(StoreError, match="Another process is writing"):
        compact(folder)


def test_nothing_is_appended_to_a_packed_run(folder: RunFolder) -> None:
    compact(folder)
    for attempt in (lambda: folder.append([make_sample(doc_id=99)]), lambda: local.resume(folder)):
        with pytest.raises(StoreError, match="are compacted") as refused:
            attempt()
        assert f"evalharness compact --restore {folder.path.name}" in refused.value.remedy
    restore(folder)
    folder.append([make_sample(doc_id=99)])


def test_a_full_disk_leaves_everything_as_it_was(folder: RunFolder) -> None:
    before, (soft, hard) = written(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreError, match="Cannot write"):
            compact(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(folder) == before
    assert [path.name for path in folder.path.rglob(".*.tmp")] == []


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_packs_all_finished_runs_and_restores_them(folder: RunFolder) -> None:
    results, runner = folder.path.parent, CliRunner()
    open_run, _ = RunFolder.create(results, make_run())
    published = results / "published" / folder.path.name
    shutil.copytree(folder.path, published)
    packed = runner.invoke(app, ["compact", "--all", "--out", str(results)])
    assert packed.exit_code == 0
    assert f"{folder.path.name}: 300 answers, " in packed.output
    assert open_run.path.name not in packed.output
    assert folder.packed.exists()
    assert not (published / columnar.FILE).exists()
    restored = runner.invoke(app, ["compact", "--restore", str(folder.path), "--out", str(results)])
    assert restored.exit_code == 0
    assert (folder.path / STOCK).exists()


def test_the_command_wants_to_be_told_what(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["compact", "--out", str(tmp_path)])
    assert "Name runs, or say --all." in str(refused.exception)
