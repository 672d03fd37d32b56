"""lm-eval runs become runs of this harness: scores kept, pairs found, every gap told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evalharness.assess import assess
from evalharness.cli import app
from evalharness.errors import DataError, PairingError, UnknownName
from evalharness.importing import import_lm_eval
from evalharness.records import Cause, Outcome, Sample
from evalharness.store import RunFolder
from tests.importing.lm_eval_output import STAMP, line, write

GSM8K = "gsm8k"


def imported(tmp_path: Path, *sources: str) -> tuple[RunFolder, list[str]]:
    return import_lm_eval(sources, tmp_path / "results")


def samples(folder: RunFolder, arm: str = "native") -> list[Sample]:
    return folder.read_samples(GSM8K, arm)


def test_two_runs_are_compared_at_once(tmp_path: Path) -> None:
    for arm, right in (("eager", 248), ("stock", 40)):
        lines = [line(n, "#### 2" if n < right else "#### 5", float(n < right)) for n in range(250)]
        write(tmp_path / arm, {GSM8K: lines})
    folder, notes = imported(tmp_path, f"eager={tmp_path / 'eager'}", f"stock={tmp_path / 'stock'}")
    assert notes == []
    comparison = assess(folder)
    task = comparison.tasks[0]
    assert (comparison.engine, comparison.model) == ("lm-eval", "org/model")
    assert task.score("stock").value == pytest.approx(0.16)  # type: ignore[union-attr]
    assert task.contrast("stock", "eager").losses == 208  # type: ignore[union-attr]
    assert "on trust" in comparison.notes[0]


def test_several_filters_are_one_sample_with_both_scores(tmp_path: Path) -> None:
    strict, flexible = line(0, "it is 2", 0.0), line(0, "it is 2", 1.0, filter="flexible-extract", filtered_resps=["2"])
    write(tmp_path, {GSM8K: [strict, flexible]})
    (sample,) = samples(imported(tmp_path, str(tmp_path))[0])
    assert sample.scores == {"exact_match": 0.0, "strict-match": 0.0, "flexible-extract": 1.0, "robust": 1.0}
    assert sample.extracted == {"strict-match": None, "flexible-extract": "2", "robust": "2"}
    assert "extractors_disagree" in sample.flags


def test_the_prompt_hash_is_that_of_a_run_of_ones_own(tmp_path: Path) -> None:
    import hashlib

    write(tmp_path, {GSM8K: [line(3)]})
    (sample,) = samples(imported(tmp_path, str(tmp_path))[0])
    assert sample.prompt_hash == hashlib.sha256(line(3)["doc"]["question"].encode()).hexdigest()


def test_answers_to_other_prompts_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", {GSM8K: [line(0)]})
    write(tmp_path / "b", {GSM8K: [line(0, prompt="<|user|>Question: Ann?")]})
    folder, _ = imported(tmp_path, f"eager={tmp_path / 'a'}", f"stock={tmp_path / 'b'}")
    with pytest.raises(PairingError, match="prompts differ"):
        assess(folder)


@pytest.mark.parametrize("value", ["N/A", None, float("nan"), float("inf"), -1, 7, {}, "1.0"])
def test_a_score_that_is_no_share_is_missing_and_said(tmp_path: Path, value: object) -> None:
    write(tmp_path, {GSM8K: [line(0, score=value), line(1)]})
    folder, notes = imported(tmp_path, str(tmp_path))
    assert [sample.cause for sample in samples(folder)] == [Cause.ERROR, Cause.CORRECT]
    assert samples(folder)[0].scores == {}
    assert notes == [f"native, {GSM8K}: 1 answers without a score, counted as lost."]


def test_na_as_a_standard_error_keeps_the_run(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(0)]})
    assert '"N/A"' in path.read_text()
    assert len(samples(imported(tmp_path, str(tmp_path))[0])) == 1


def test_nan_in_the_results_does_not_reach_the_records(tmp_path: Path) -> None:
    write(tmp_path, {GSM8K: [line(0)]}, total_evaluation_time_seconds=float("nan"), chat_template_sha=float("inf"))
    folder, _ = imported(tmp_path, str(tmp_path))
    for file in folder.path.rglob("*.json*"):
        for text in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            json.loads(text, parse_constant=pytest.fail)


# --- several files ------------------------------------------------------------------------------------------------


def test_two_results_in_one_tree_are_ambiguous_until_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, {GSM8K: [line(0)]})
    later = write(tmp_path, {GSM8K: [line(0, "#### 5", 0.0)]}, stamp="2026-12-01T09-00-00.5")
    with pytest.raises(DataError, match=r"2 results files: .*results_2026-11-30.*results_2026-12-01") as caught:
        imported(tmp_path, str(tmp_path))
    assert "Name the file" in caught.value.remedy
    folder, _ = imported(tmp_path, str(later))
    assert [sample.scores["exact_match"] for sample in samples(folder)] == [0.0]


def test_an_output_path_that_named_a_file_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(0)]})
    path.rename(path.with_name(f"mine_{STAMP}.json"))
    assert len(samples(imported(tmp_path, str(tmp_path))[0])) == 1


def test_a_results_file_without_its_time_takes_the_only_samples_file(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(0)]}).rename(tmp_path / "org__model" / "results.json")
    assert len(samples(imported(tmp_path, str(path))[0])) == 1
    other = path.with_name("samples_gsm8k_2026-12-01T09-00-00.5.jsonl")
    other.write_text(json.dumps(line(0)))
    with pytest.raises(DataError, match="2 samples files fit task gsm8k"):
        imported(tmp_path, str(path))


def test_a_task_whose_name_begins_like_anothers_gets_its_own_file(tmp_path: Path) -> None:
    write(tmp_path, {GSM8K: [line(0)], "gsm8k_cot": [line(0), line(1)]})
    folder, _ = imported(tmp_path, str(tmp_path))
    assert len(samples(folder)) == 1
    assert len(folder.read_samples("gsm8k_cot", "native")) == 2


def test_results_of_several_files_make_one_arm_unless_a_task_is_repeated(tmp_path: Path) -> None:
    one = write(tmp_path / "1", {GSM8K: [line(0)]})
    two = write(tmp_path / "2", {"aime25": [line(0)]})
    folder, _ = imported(tmp_path, f"eager={one}", f"eager={two}")
    assert [task["name"] for task in folder.read_run().spec["tasks"]] == [GSM8K, "aime25"]
    again = write(tmp_path / "3", {GSM8K: [line(0)]})
    with pytest.raises(PairingError, match="Two sources give arm eager the task gsm8k"):
        imported(tmp_path, f"eager={one}", f"eager={again}")


# --- gaps ---------------------------------------------------------------------------------------------------------


def test_missing_samples_are_counted_and_told(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(n) for n in range(5)]})
    content = json.loads(path.read_text())
    content["n-samples"][GSM8K]["effective"] = 7
    path.write_text(json.dumps(content))
    assert imported(tmp_path, str(path))[1] == ["native, gsm8k: samples of 2 of 7 documents are missing."]


def test_a_line_cut_at_the_end_is_left_out_and_told(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(0), line(1)]})
    file = path.with_name(f"samples_{GSM8K}_{STAMP}.jsonl")
    file.write_bytes(file.read_bytes()[:-40])
    folder, notes = imported(tmp_path, str(path))
    assert len(samples(folder)) == 1
    assert any("last line that was cut" in note for note in notes)
    assert any("1 of 2 documents are missing" in note for note in notes)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(n) for n in range(3)]})
    file = path.with_name(f"samples_{GSM8K}_{STAMP}.jsonl")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1][:50], lines[2]]) + "\n")
    with pytest.raises(DataError, match="line 2 is not JSON"):
        imported(tmp_path, str(path))


def test_totals_without_samples_are_refused_with_the_option_to_set(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(0)]})
    path.with_name(f"samples_{GSM8K}_{STAMP}.jsonl").unlink()
    with pytest.raises(DataError, match="--log_samples"):
        imported(tmp_path, str(path))


def test_a_group_without_samples_is_left_out_and_told(tmp_path: Path) -> None:
    path = write(tmp_path, {GSM8K: [line(0)]})
    content = json.loads(path.read_text())
    content["results"]["mmlu"] = {"acc,none": 0.5}
    path.write_text(json.dumps(content))
    folder, notes = imported(tmp_path, str(path))
    assert "mmlu is left out" in notes[0]
    assert len(samples(folder)) == 1


def test_two_answers_to_a_document_in_one_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {GSM8K: [line(0), line(0)]})
    with pytest.raises(DataError, match="document 0 has two answers"):
        imported(tmp_path, str(tmp_path))


def test_a_document_asked_several_times_is_several_answers(tmp_path: Path) -> None:
    repeated = line(0, score=1.0, resps=[["#### 2", "#### 3", "so it is 2."]])
    write(tmp_path, {"aime25": [repeated]})
    folder, notes = imported(tmp_path, str(tmp_path))
    found = folder.read_samples("aime25", "native")
    assert [(s.repeat, s.scores["exact_match"]) for s in found] == [(0, 1.0), (1, 0.0), (2, 1.0)]
    assert any("3 answers of repeated documents" in note for note in notes)


def test_an_empty_answer_is_told_for_it_may_be_a_lost_request(tmp_path: Path) -> None:
    write(tmp_path, {GSM8K: [line(0, "", 0.0)]})
    folder, notes = imported(tmp_path, str(tmp_path))
    assert samples(folder)[0].cause is Cause.EMPTY
    assert "records a request that failed" in notes[0]


def test_a_trace_that_was_scored_is_told(tmp_path: Path) -> None:
    write(tmp_path, {GSM8K: [line(0, "<think>maybe 2", 1.0)]})
    folder, notes = imported(tmp_path, str(tmp_path))
    assert samples(folder)[0].reasoning == "maybe 2"
    assert any("inside their reasoning" in note for note in notes)


def test_other_settings_are_told(tmp_path: Path) -> None:
    write(tmp_path / "a", {GSM8K: [line(0)]}, chat_template_sha="aa")
    write(tmp_path / "b", {GSM8K: [line(0)]}, chat_template_sha="bb")
    _, notes = imported(tmp_path, f"eager={tmp_path / 'a'}", f"stock={tmp_path / 'b'}")
    assert notes == ["stock differs from eager in chat_template_sha: bb and aa."]


# --- names --------------------------------------------------------------------------------------------------------


def test_several_runs_need_an_arm_each(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="eager=PATH stock=PATH"):
        imported(tmp_path, "a", "b")
    with pytest.raises(UnknownName, match="'pached'"):
        imported(tmp_path, f"pached={tmp_path}")


@pytest.mark.parametrize("task", ["../../up", "/etc/passwd", "a/b", "", "x" * 200, "\x1b[31m"])
def test_a_task_name_cannot_leave_the_folder(tmp_path: Path, task: str) -> None:
    path = write(tmp_path / "in", {GSM8K: [line(0)]})
    content = json.loads(path.read_text())
    content["results"][task] = {}
    path.write_text(json.dumps(content))
    before = {p for p in tmp_path.rglob("*") if "results/" not in str(p)}
    _, notes = imported(tmp_path, str(path))
    assert "cannot be a file's" in notes[0]
    assert {p for p in tmp_path.rglob("*") if "results/" not in str(p)} - before <= {tmp_path / "results"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": []}', "not json", "[" * 100_000])
def test_a_file_that_is_not_lm_evals_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(DataError):
        imported(tmp_path, str(path))


def test_the_command_imports_compares_and_returns_the_verdict(tmp_path: Path) -> None:
    for arm in ("eager", "stock"):
        write(tmp_path / arm, {GSM8K: [line(n) for n in range(40)]})
    sources = [f"{arm}={tmp_path / arm}" for arm in ("eager", "stock")]
    done = CliRunner().invoke(app, ["import", "lm-eval", *sources, "--out", str(tmp_path / "results")])
    assert done.exit_code == Outcome.INVALID.exit_code  # stock equals eager
    assert "imported as" in done.output
    (run,) = (tmp_path / "results").iterdir()
    assert (run / "comparison.csv").is_file()
