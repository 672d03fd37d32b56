"""Stored answers scored again: both versions are kept, and what changed is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.canary.problems import documents
from evalharness.commands import report as reporting
from evalharness.errors import DataError, EvalHarnessError, RecordError, UnknownName
from evalharness.records import Sample
from evalharness.rescore import rescore_file, rescore_run
from evalharness.store import RunFolder, decode
from tests.stored_runs import stored_run

DOCS = documents("gsm8k_canary", "test", 4)


def written(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def lm_eval_rows(responses: Sequence[str], scores: Sequence[float]) -> list[dict[str, Any]]:
    """As lm-eval 0.4.13 logs them: every document once per filter, all of the first filter before the second."""
    return [
        {
            "doc_id": i,
            "doc": DOCS[i],
            "target": DOCS[i]["answer"],
            "arguments": {"gen_args_0": {"arg_0": f"Question: {DOCS[i]['question']}\nAnswer:", "arg_1": {}}},
            "resps": [[response]],
            "filtered_resps": [response],
            "filter": name,
            "metrics": ["exact_match"],
            "doc_hash": "h",
            "exact_match": score,
        }
        for name in ("strict-match", "flexible-extract")
        for i, (response, score) in enumerate(zip(responses, scores, strict=True))
    ]


def samples_in(path: Path) -> list[Sample]:
    return [decode(Sample, line, path.name) for line in path.read_text().splitlines()]


# --- a run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose first three stock answers were scored by an extractor that gave credit to loops."""
    folder = stored_run(tmp_path_factory.mktemp("results"), {"gsm8k_canary": (20, 1), "aime25_canary": (5, 2)})
    path = folder.samples_path("gsm8k_canary", "stock")
    path.write_text(path.read_text().replace('"exact_match":0.0', '"exact_match":1.0', 3))
    return folder


def test_a_run_is_scored_again_into_a_folder_of_its_own(old_run: RunFolder) -> None:
    before = {p: p.read_bytes() for p in old_run.path.rglob("*") if p.is_file()}
    folder, results = rescore_run(old_run)
    assert folder.path != old_run.path
    assert {p: p.read_bytes() for p in old_run.path.rglob("*") if p.is_file()} == before
    stock = next(r for r in results if (r.task, r.arm) == ("gsm8k_canary", "stock"))
    assert stock.before == pytest.approx(stock.after + 3 / 20)
    assert [change.after["exact_match"] for change in stock.changes] == [0.0] * 3
    assert sum(len(r.changes) for r in results) == 3


def test_the_new_run_says_where_it_comes_from_and_keeps_its_date(old_run: RunFolder) -> None:
    folder, _ = rescore_run(old_run, only="gsm8k_canary")
    old, new = old_run.read_run(), folder.read_run()
    assert new.provenance["rescored"] == {"from": old.run_id, "scoring_version": 1, "tasks": ["gsm8k_canary"]}
    assert (new.created, new.finished) == (old.created, old.finished)
    assert folder.read_evidence() == old_run.read_evidence()
    assert folder.read_samples("aime25_canary", "eager") == old_run.read_samples("aime25_canary", "eager")


def test_a_task_the_run_does_not_have_is_refused(old_run: RunFolder) -> None:
    with pytest.raises(UnknownName, match="Did you mean: gsm8k_canary"):
        rescore_run(old_run, only="gsm8k_canari")


def test_answers_to_other_documents_are_refused(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, {"gsm8k_canary": (3, 1)})
    path = folder.samples_path("gsm8k_canary", "eager")
    path.write_text(path.read_text().replace('"doc_hash":"', '"doc_hash":"0'))
    with pytest.raises(DataError, match="not the one that was answered"):
        rescore_run(folder)


# --- files -----------------------------------------------------------------------------------------------


def test_lm_evals_own_samples_are_scored_without_their_dataset(tmp_path: Path) -> None:
    responses = [DOCS[0]["answer"], "I think so.", DOCS[2]["answer"], "The answer is 1."]
    rows = lm_eval_rows(responses, [1.0, 1.0, 0.0, 0.0])
    path = written(tmp_path / "samples_gsm8k_canary_2026-12-01T16-03-26.159449.jsonl", rows)
    text = path.read_text()
    found = rescore_file(path)
    assert (found.task, found.n, found.before, found.after) == ("gsm8k_canary", 4, 0.5, 0.5)
    assert {(c.doc_id, c.before["exact_match"], c.after["exact_match"]) for c in found.changes} == {
        (1, 1.0, 0.0),
        (2, 0.0, 1.0),
    }
    assert path.read_text() == text
    assert [s.scores["exact_match"] for s in samples_in(found.written)] == [1.0, 0.0, 1.0, 0.0]


def test_lm_evals_repeats_become_repeats(tmp_path: Path) -> None:
    doc = documents("aime25_canary", "test", 1)[0]
    row = {
        "doc_id": 0,
        "doc": doc,
        "target": doc["answer"],
        "resps": [[doc["solution"], "\\boxed{1}"]],
        "filter": "none",
    }
    found = rescore_file(written(tmp_path / "x.jsonl", [row]), "aime25_canary")
    assert [(s.repeat, s.scores["exact_match"]) for s in samples_in(found.written)] == [(0, 1.0), (1, 0.0)]


@pytest.mark.parametrize("field", ["response", "completion", "output", "generated_text"])
@pytest.mark.parametrize("target", ["29", 29, "4*7+1=29\n#### 29"])
def test_plain_rows_need_a_response_and_a_target(tmp_path: Path, field: str, target: object) -> None:
    rows = [{field: "so it costs $29.00.", "target": target}, {field: "#### 29", "target": target}]
    found = rescore_file(written(tmp_path / "mine.jsonl", rows), "gsm8k")
    assert (found.before, found.after, found.robust, found.disagreements) == (None, 0.5, 1.0, 1)
    assert "no finish reasons" in found.notes[0]


def test_an_answer_cut_inside_its_reasoning_earns_nothing(tmp_path: Path) -> None:
    rows = [{"response": "I add 4 and 3 and get 7, then", "target": "7", "finish_reason": "length"}]
    found = rescore_file(written(tmp_path / "cut.jsonl", rows), "gsm8k")
    (sample,) = samples_in(found.written)
    assert sample.cause == "truncated"
    assert found.notes == ()


def test_rows_with_a_document_number_only_are_matched_with_the_tasks_own_data(tmp_path: Path) -> None:
    rows = [{"doc_id": i, "response": DOCS[i]["answer"]} for i in (3, 1)]
    found = rescore_file(written(tmp_path / "ids.jsonl", rows), "gsm8k_canary")
    assert (found.n, found.after) == (2, 1.0)
    with pytest.raises(DataError, match="no document 99999"):
        rescore_file(written(tmp_path / "far.jsonl", [{"doc_id": 99999, "response": "1"}]), "gsm8k_canary")


def test_this_projects_own_samples_keep_their_record(tmp_path: Path, old_run: RunFolder) -> None:
    path = tmp_path / "stock.jsonl"
    path.write_text(old_run.samples_path("gsm8k_canary", "stock").read_text())
    found = rescore_file(path)
    old, new = samples_in(path), samples_in(found.written)
    assert found.arm == "stock"
    assert [(s.doc_hash, s.token_ids, s.seed) for s in old] == [(s.doc_hash, s.token_ids, s.seed) for s in new]
    assert len([c for c in found.changes if c.before]) == 3


def test_every_version_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", [{"response": "#### 5", "target": "5"}])
    names = [rescore_file(path, "gsm8k").written.name for _ in range(3)]
    assert names == ["mine.rescored-v1.jsonl", "mine.rescored-v1.2.jsonl", "mine.rescored-v1.3.jsonl"]
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("value", ["N/A", None, float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_no_score(tmp_path: Path, value: object) -> None:
    row = {"response": "#### 5", "target": "5", "exact_match": value}
    found = rescore_file(written(tmp_path / "odd.jsonl", [row]), "gsm8k")
    assert (found.before, found.after, found.changes) == (None, 1.0, ())
    assert "NaN" not in found.written.read_text()


@pytest.mark.parametrize(
    ("text", "task", "error", "words"),
    [
        ("", "gsm8k", DataError, "holds no answers"),
        ('{"a": 1}\n', "gsm8k", DataError, "line 1 has no response; it has a"),
        ('{"response": "1", "target": "1"}\n', None, DataError, "--task gsm8k"),
        ('{"response": "1", "target": "1"}\n', "gsm9k", UnknownName, "Did you mean: gsm8k"),
        ("not json\n", "gsm8k", RecordError, "line 1 is not JSON"),
        ("[1]\n", "gsm8k", RecordError, "line 1 is not an object"),
        ('{"id": 1, "response": "1", "target": "1"}\n' * 2, "gsm8k", DataError, "answers a document twice"),
    ],
)
def test_a_file_that_cannot_be_scored_is_refused_in_words(
    tmp_path: Path, text: str, task: str | None, error: type[EvalHarnessError], words: str
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(error, match=words):
        rescore_file(path, task)
    assert list(tmp_path.iterdir()) == [path]


def test_hostile_answers_are_scored_like_any_other(tmp_path: Path) -> None:
    answers = ["\ud800 half", "\x00\x1b[31m", "A" * 1_000_000, "\u202e7 ####", None, "<script>#### 5</script>"]
    rows = [{"response": answer, "target": "5"} for answer in answers]
    found = rescore_file(written(tmp_path / "bad.jsonl", rows), "gsm8k")
    assert found.n == 6


def test_the_command_prints_what_changed(
    tmp_path: Path, old_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reporting.rescore(str(old_run.path), tmp_path, "gsm8k_canary", None) == 0
    printed = capsys.readouterr().out
    assert "gsm8k_canary stock: n 20, accuracy" in printed
    assert "exact_match 1 -> 0" in printed
