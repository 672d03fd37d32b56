"""Cases of CASES.md: what is written where, what is read back, and which of several runs is meant."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evalharness.assess import assess
from evalharness.cli import app
from evalharness.engines.base import Completion, Request
from evalharness.errors import DataError, UnknownName
from evalharness.importing import import_lm_eval
from evalharness.records import Cause
from evalharness.reports import write_tables
from evalharness.rescore import rescore_run
from evalharness.runner import local
from evalharness.scoring import definitions
from evalharness.scoring.data import SOURCES
from evalharness.store import RunFolder, find_run, list_runs
from tests.cases import slow_engine
from tests.faults.scripted import Scripted, right, scripted, small_spec
from tests.importing.lm_eval_output import line, write
from tests.scoring.fakes import sources_of, write_data

__all__ = ["scripted"]
ROOT = Path(__file__).parents[2]
TASK = "gsm8k_canary"


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


# --- 13: lm-eval 2927 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["name.json", "run.jsonl", "deep/er/out.csv", "report.html"])
def test_case_13_lm_eval_2927_an_output_path_named_like_a_file_is_refused_up_front(
    tmp_path: Path, scripted: type[Scripted], name: str
) -> None:
    arguments = ["run", "canary-v3", "--limit", "2", "--out", str(tmp_path / name)]
    done = CliRunner().invoke(app, arguments)
    assert "is named like a file" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
    assert scripted.opened == 0


@pytest.mark.parametrize("model", ["org/model", "a/b/c", "../up"])
def test_case_13_lm_eval_2927_a_model_name_with_slashes_makes_no_folders(
    tmp_path: Path, scripted: type[Scripted], model: str
) -> None:
    out = tmp_path / "results"
    folder = local.start(small_spec(engine={"kind": "emulated", "model": model}), out)
    assert [path.parent for path in list_runs(out)] == [out]
    assert folder.path.parent == out
    assert list(tmp_path.iterdir()) == [out]
    assert scripted.opened == 1


# --- 14 and 15: "N/A" and NaN -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["N/A", "n/a", None, "", float("nan"), float("-inf"), [], {}])
def test_case_14_every_eval_ever_193_a_missing_figure_is_missing_and_the_run_is_kept(
    tmp_path: Path, missing: object
) -> None:
    path = write(tmp_path / "in", {TASK: [line(n) for n in range(3)]})
    content = json.loads(path.read_text())
    content["results"][TASK]["exact_match_stderr,strict-match"] = missing
    content["total_evaluation_time_seconds"] = missing
    path.write_text(json.dumps(content))
    folder, _ = import_lm_eval([str(path)], tmp_path / "out")
    assert len(folder.read_samples(TASK, "native")) == 3


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_case_15_meds_dev_286_what_is_no_number_becomes_null_with_a_reason_and_never_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    monkeypatch.setattr(definitions, "_numbers", not_finite(definitions._numbers, number))
    folder = local.start(small_spec("eager", "stock"), tmp_path)
    samples = folder.read_samples(TASK, "eager")
    assert {sample.cause for sample in samples} == {Cause.ERROR}
    assert {sample.error for sample in samples} == {"lm-eval gave no finite exact_match"}
    for name, text in write_tables(assess(folder)).items():
        folder.write_text(name, text)
    for file in folder.path.rglob("*.json*"):
        for text in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            strict(text)


def not_finite(read: Any, number: float) -> Any:
    return lambda metrics: read(dict.fromkeys(metrics, number))


# --- 16: Model-Optimizer 2062 -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("scripted")
def test_case_16_model_optimizer_2062_results_are_chosen_by_run_and_never_by_the_order_of_names(
    tmp_path: Path,
) -> None:
    one, two = (local.start(small_spec(seed=seed), tmp_path) for seed in (1, 2))
    for folder in (one, two):
        assert find_run(tmp_path, folder.path.name).path == folder.path
        assert find_run(tmp_path, folder.path.name[:-1]).path == folder.path
    with pytest.raises(UnknownName, match="run '20"):
        find_run(tmp_path, "20")


@pytest.mark.parametrize(
    "stamps", [("2026-11-30T08-15-00.1", "2026-12-01T08-15-00.1"), ("2026-12-01T08-15-00", "2026-12-01T08-15-01")]
)
def test_case_16_model_optimizer_2062_two_foreign_results_in_one_tree_are_ambiguous(
    tmp_path: Path, stamps: tuple[str, str]
) -> None:
    paths = [write(tmp_path, {TASK: [line(0, score=float(n))]}, stamp) for n, stamp in enumerate(stamps)]
    with pytest.raises(DataError, match="2 results files"):
        import_lm_eval([str(tmp_path)], tmp_path / "out")
    for n, path in enumerate(paths):
        folder, _ = import_lm_eval([str(path)], tmp_path / "out")
        assert folder.read_samples(TASK, "native")[0].scores["exact_match"] == n


# --- 17: lm-eval 2533 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_case_17_lm_eval_2533_after_kill_9_only_what_is_missing_is_answered_again(
    tmp_path: Path, scripted: type[Scripted], share: float
) -> None:
    spec = small_spec(limit=20)
    whole = local.start(spec, tmp_path / "whole")
    killed = subprocess.Popen([sys.executable, "-m", "tests.cases.slow_engine", str(tmp_path / "killed")], cwd=ROOT)
    wait_for_lines(tmp_path / "killed", int(share * 60))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    folder = RunFolder(list_runs(tmp_path / "killed")[0])
    saved = sum(len(folder.read_samples(TASK, arm.name)) for arm in folder.read_run().arms)
    scripted.asked.clear()
    local.resume(folder)
    assert saved >= int(share * 60)
    assert len(scripted.asked) == 60 - saved
    assert [task.scores for task in assess(folder).tasks] == [task.scores for task in assess(whole).tasks]


def wait_for_lines(results: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = sum(path.read_bytes().count(b"\n") for path in results.glob("*/samples/*/*.jsonl"))
        if lines >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


# --- 19: evalscope 767 --------------------------------------------------------------------------------------------


def test_case_19_evalscope_767_a_new_scorer_scores_old_answers_without_a_model_and_says_its_version(
    tmp_path: Path, scripted: type[Scripted]
) -> None:
    """The old run's scorer gave credit to everything."""
    folder = local.start(small_spec(), tmp_path)
    for arm in ("eager", "stock", "patched"):
        path = folder.samples_path(TASK, arm)
        path.write_text(path.read_text().replace('"exact_match":0.0', '"exact_match":1.0'))
    before = assess(folder).tasks[0].score("eager")
    scripted.asked.clear()
    again, changes = rescore_run(folder)
    after = assess(again).tasks[0].score("eager")
    assert before is not None
    assert after is not None
    assert before.value == 1
    assert after.value == 0
    assert scripted.asked == []
    assert assess(folder).tasks[0].score("eager") == before  # the old scores stay where they are
    assert {change.arm for change in changes} == {"eager", "stock", "patched"}


# --- 20: lm-eval 1723 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [(), ("gsm8k/train.jsonl",)])
def test_case_20_lm_eval_1723_missing_data_is_named_before_an_engine_starts(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    data = write_data(tmp_path / "data")
    for name, source in sources_of(data).items():
        monkeypatch.setitem(SOURCES, name, source)
    for path in sorted(data.rglob("*.jsonl")):
        if str(path.relative_to(data)) not in there:
            path.unlink()
    with pytest.raises(DataError) as caught:
        local.start(small_spec(tasks=["gsm8k"], data_dir=str(data)), tmp_path / "out")
    assert "gsm8k" in str(caught.value)
    assert "--data" in str(caught.value)
    assert scripted.opened == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", ["gsm8k", "aime25"])
def test_case_20_datasets_4760_offline_with_an_empty_cache_names_dataset_revision_and_path(
    tmp_path: Path, task: str
) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "evalharness", "run", "canary-v3", "--tasks", task, "--out", str(tmp_path / "out")]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    for named in (task, "revision", str(tmp_path / "hub"), "--data"):
        assert named in done.stderr
    assert time.monotonic() - began < 60
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in done.stderr


def test_case_20_an_offline_run_of_the_canary_opens_no_connection(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder = local.start(small_spec(), tmp_path)
    assert len(folder.read_samples(TASK, "patched")) == 6
    assert scripted.opened == 1


def test_the_slow_engine_answers_as_the_scripted_one() -> None:
    request = Request("r", "a prompt", 8)
    (done,) = slow_engine.Slow().generate([request])
    assert isinstance(done, Completion)
    assert done == right("eager", request)
