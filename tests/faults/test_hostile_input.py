"""Whatever somebody else wrote (specs, records, answers, other tools' results) ends in a result or one clear error.

Counts are small here; EVALHARNESS_FUZZ_EXAMPLES sets another number a property.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import evalharness
from evalharness import cli
from evalharness.assess import assess
from evalharness.engines.base import Completion, Request
from evalharness.engines.endpoint_reply import Answer, completion, read
from evalharness.engines.endpoint_server import Lost
from evalharness.engines.vllm_settings import engine_arguments
from evalharness.errors import EvalHarnessError, RecordError, SpecError
from evalharness.importing import import_lm_eval
from evalharness.policy import load_policy
from evalharness.records import Comparison, Outcome, Sample, Verdict
from evalharness.reports import write_tables
from evalharness.reports.terminal import render
from evalharness.runner.choose import Choice, resolve
from evalharness.scoring.tasks import PreparedTask, prepare
from evalharness.spec import VllmEngine, load_spec, parse_spec
from evalharness.store import RunFolder, decode, encode, find_run
from tests.faults.scripted import small_spec
from tests.importing.lm_eval_output import line, write
from tests.stored_runs import stored_run

EXAMPLES = int(os.environ.get("EVALHARNESS_FUZZ_EXAMPLES", "40"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
ROOT = Path(__file__).parents[2]
TASK = "gsm8k_canary"

TEXT = st.text(max_size=40) | st.sampled_from(
    [
        "",
        "\x00",
        "\x1b[31m",
        "../../up",
        "/etc/passwd",
        "a/b",
        "NaN",
        "\ud800",
        "\u202e",
        "<script>",
        "eager",
        "=1+1",
        "9" * 400,
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """`value` with one of its leaves or branches replaced by any JSON, or left out."""
    if isinstance(value, dict) and value:
        return st.sampled_from(sorted(value)).flatmap(
            lambda key: st.one_of(
                JSON.map(lambda new: {**value, key: new}),
                mutated(value[key]).map(lambda new: {**value, key: new}),
                st.just({k: v for k, v in value.items() if k != key}),
            )
        )
    if isinstance(value, list) and value:
        return st.one_of(JSON.map(lambda new: [new, *value[1:]]), mutated(value[0]).map(lambda new: [new, *value[1:]]))
    return JSON


@contextmanager
def in_words() -> Iterator[None]:
    """Whatever is refused is refused by an error of ours that says what to do."""
    try:
        yield
    except EvalHarnessError as error:
        if not (error.message and error.remedy):
            raise AssertionError(f"no remedy: {error}") from error


# --- specs and policies -------------------------------------------------------------------------------------------

SPEC = load_spec("canary-v3").model_dump(mode="json")


@fuzz
@given(mutated(SPEC))
def test_any_spec_is_accepted_or_refused_in_words(raw: Any) -> None:
    with in_words():
        spec = parse_spec(raw)
        assert parse_spec(spec.model_dump(mode="json")) == spec


@fuzz
@given(st.text(max_size=200) | mutated(SPEC).map(lambda raw: yaml.safe_dump(raw, allow_unicode=True)))
def test_any_spec_file_is_read_or_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for load in (load_spec, load_policy):
        with in_words():
            load(str(path))


@fuzz
@given(
    st.text(max_size=60)
    | st.tuples(st.sampled_from(["engine.model", "tasks.0.limit", "arms", "a.b.c"]), TEXT).map("=".join)
)
def test_any_setting_is_applied_or_refused_in_words(setting: str) -> None:
    with in_words():
        load_spec("canary-v3", [setting])


@fuzz
@given(arms=TEXT, arm=st.lists(TEXT, max_size=2), tasks=TEXT, concurrency=TEXT)
def test_any_choice_on_the_command_line_is_resolved_or_refused_in_words(
    arms: str, arm: list[str], tasks: str, concurrency: str
) -> None:
    with in_words():
        resolve(Choice(arms=arms, arm=tuple(arm), tasks=tasks, concurrency=concurrency), "canary-v3")


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch owned']",
        "name: !!python/object/new:subprocess.Popen [['touch', 'owned']]",
        "engine: !!python/name:os.system",
        "a: &a [x, x]\nb: &b [*a, *a]\nname: *b",
    ],
)
def test_yaml_is_data_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(text)
    for load in (load_spec, load_policy):
        with pytest.raises(SpecError):
            load("spec.yaml")
    assert not Path("owned").exists()


def test_remote_code_is_off_unless_the_spec_says_so() -> None:
    assert engine_arguments(VllmEngine(model="org/m"))["trust_remote_code"] is False
    assert engine_arguments(VllmEngine(model="org/m", trust_remote_code=True))["trust_remote_code"] is True
    with pytest.raises(SpecError):
        engine_arguments(VllmEngine(model="org/m", engine_args={"trust_remote_code": True}))


# --- records ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return stored_run(tmp_path_factory.mktemp("results"), {TASK: (4, 1)})


@fuzz
@given(st.data())
def test_any_run_file_is_compared_or_refused_in_words(run: RunFolder, data: st.DataObject) -> None:
    original = run.read_text("run.json")
    try:
        with in_words():
            run.write_text("run.json", json.dumps(data.draw(mutated(json.loads(original)))))
            assess(run)
    finally:
        run.write_text("run.json", original)


@fuzz
@given(st.data())
def test_any_sample_line_is_compared_or_refused_in_words(run: RunFolder, data: st.DataObject) -> None:
    path = run.samples_path(TASK, "stock")
    original = path.read_bytes()
    rows = original.splitlines()
    changed = data.draw(st.binary(max_size=60) | mutated(json.loads(rows[0])).map(lambda row: json.dumps(row).encode()))
    try:
        with in_words():
            path.write_bytes(b"\n".join([changed, *rows[1:]]) + b"\n")
            assess(run)
    finally:
        path.write_bytes(original)


@fuzz
@given(st.data())
def test_any_evidence_is_compared_or_refused_in_words(run: RunFolder, data: st.DataObject) -> None:
    original = run.read_text("evidence/stock.json")
    try:
        with in_words():
            run.write_text("evidence/stock.json", json.dumps(data.draw(mutated(json.loads(original)))))
            assess(run)
    finally:
        run.write_text("evidence/stock.json", original)


@fuzz
@given(name=TEXT)
def test_no_name_leads_out_of_the_run_folder(run: RunFolder, name: str) -> None:
    for place in (
        lambda: run.samples_path(name, "eager"),
        lambda: run.samples_path(TASK, name),
        lambda: run.log_path(name),
    ):
        try:
            path = place()
        except RecordError:
            continue
        assert path.resolve().is_relative_to(run.path.resolve())


@fuzz
@given(TEXT)
def test_any_reference_finds_a_run_or_is_refused_in_words(run: RunFolder, reference: str) -> None:
    with in_words():
        find_run(run.path.parent, reference)


# --- answers ------------------------------------------------------------------------------------------------------

ANSWERS = st.text(max_size=300) | st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "#### ",
            r"\boxed{",
            "}",
            "7",
            "\n\n",
            "Question:",
            "$",
            "answer is ",
            "\x1b]0;t\x07",
            "\u0000",
        ]
    ),
    max_size=20,
).map("".join)


@pytest.fixture(scope="module")
def prepared() -> tuple[PreparedTask, ...]:
    return prepare(small_spec(tasks=[{"name": name, "limit": 2} for name in (TASK, "aime25_canary")]))


@fuzz
@given(text=ANSWERS, reasoning=ANSWERS, reason=st.sampled_from(["stop", "length", "error"]))
def test_any_answer_is_scored_and_comes_back_from_disk(
    prepared: tuple[PreparedTask, ...], text: str, reasoning: str, reason: str
) -> None:
    for task in prepared:
        sample = task.score(task.items[0], Completion("r", text, (1,), reason, 1, 1, 0.1, reasoning), "eager")
        assert all(0 <= score <= 1 for score in sample.scores.values())
        assert "\n" not in encode(sample)
        assert decode(Sample, encode(sample), "a sample") == sample


@pytest.fixture(scope="module")
def comparison(run: RunFolder) -> Comparison:
    return assess(run)


HOSTILE = st.text(max_size=30).map(lambda text: f"<script>alert(1)</script>\x1b[31m{text}\x9b2J\u202e")


@fuzz
@given(HOSTILE)
def test_what_came_from_outside_reaches_the_terminal_and_pages_as_text(comparison: Comparison, text: str) -> None:
    """Model and run names and messages hold escapes and tags."""
    verdict = Verdict(Outcome.ERROR, (text,))
    found = replace(comparison, model=text, name=text, run_id=text, verdict=verdict, notes=(text,))
    buffer = io.StringIO()
    Console(file=buffer, width=100, no_color=True).print(render(found))
    tables = write_tables(found)
    for shown in (buffer.getvalue(), tables["comparison.csv"], tables["comparison.md"]):
        assert not set(shown) & {"\x1b", "\x9b", "\u202e"}
    assert "<script>" not in tables["comparison.md"]
    assert json.loads(tables["comparison.json"])["model"] == text  # data for programs: it comes back as it was


# --- servers ------------------------------------------------------------------------------------------------------

RESPONSE = {
    "choices": [
        {
            "text": "4",
            "message": {"content": "4", "reasoning_content": "x"},
            "finish_reason": "stop",
            "token_ids": [1, 2],
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    "prompt_token_ids": [1, 2, 3],
}


@fuzz
@given(mutated(RESPONSE))
def test_any_answer_of_a_server_is_read_or_lost(found: Any) -> None:
    if not isinstance(found, dict):
        return
    try:
        answer = read(found, "2+2=")
    except Lost:
        return
    assert isinstance(answer, Answer)
    done = completion(Request("r", "2+2=", 8, stop=("x",)), answer, 0.1)
    assert decode(Completion, encode(done), "a completion") == done


# --- other tools' results -----------------------------------------------------------------------------------------


@fuzz
@given(st.data())
def test_any_lm_eval_results_are_imported_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("lm")
    path = write(place / "in", {TASK: [line(0), line(1)]})
    content = data.draw(mutated(json.loads(path.read_text())))
    sample = data.draw(mutated(line(0)))
    path.write_text(json.dumps(content))
    file = next(path.parent.glob("samples_*"))
    file.write_text(f"{json.dumps(sample)}\n{json.dumps(line(1))}\n")
    with in_words():
        folder, _ = import_lm_eval([str(path)], place / "out")
        assess(folder)
    assert {entry.name for entry in place.iterdir()} <= {"in", "out"}


# --- the command line ---------------------------------------------------------------------------------------------

COMMANDS = st.sampled_from(
    [
        ("compare", "{}"),
        ("compare", "{}", "{}"),
        ("report", "{}"),
        ("verify", "{}"),
        ("rescore", "{}"),
        ("list", "{}"),
        ("import", "{}", "{}"),
        ("import", "lm-eval", "{}", "eager={}"),
        ("run", "{}"),
        ("run", "--resume", "{}"),
        ("run", "canary-v3", "--dry-run", "--set", "{}"),
        ("run", "canary-v3", "--dry-run", "--arm", "{}", "--tasks", "{}"),
        ("serve-arm", "{}", "{}"),
    ]
)
WORDS = TEXT.filter(lambda text: "\x00" not in text)  # no argument of a process can hold it


@fuzz
@given(COMMANDS, WORDS, WORDS)
def test_any_words_on_the_command_line_end_in_a_result_or_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    one: str,
    two: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = iter((one, two))
    arguments = [part.format(next(words)) if "{}" in part else part for part in command]
    monkeypatch.setattr(sys, "argv", ["evalharness", *arguments])
    with pytest.raises(SystemExit):
        cli.main()
    assert "a fault of evalharness" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- the package itself -------------------------------------------------------------------------------------------

FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def test_nothing_here_loads_pickles_or_evaluates_text() -> None:
    for path in Path(evalharness.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {
                    str(getattr(node, "module", "")).split(".")[0]
                }
                assert not names & FORBIDDEN, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path
