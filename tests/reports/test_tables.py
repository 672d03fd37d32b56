"""The written tables: a contract for tools, a page for people, nothing that is not strict."""

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalharness.errors import RecordError
from evalharness.records import Comparison
from evalharness.reports import REPORTS, write_tables
from evalharness.reports.comparison_json import parse
from tests.synthetic import answers, faulty_release, judge, lost, run_of

CONTRACT = "run_id,engine,model,task,metric,arm,n,value,ci_low,ci_high,token_agreement,verdict"


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    published = {
        "gsm8k": {"source": "vLLM #42444", "model": "DeepSeek-V4-Flash", "arms": {"stock": 0.169, "patched": 0.954}},
        "aime25": {"source": "vLLM #42444", "model": "DeepSeek-V4-Flash", "arms": {"stock": 0.0, "patched": 0.942}},
    }
    return judge(faulty_release(), published=published)


def rows(found: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(write_tables(found)["comparison.csv"])))


def test_every_report_is_written_to_the_file_it_names(comparison: Comparison) -> None:
    assert set(write_tables(comparison)) == {file for file, _ in REPORTS.values()}
    assert {"comparison.json", "comparison.csv", "comparison.md"} <= set(write_tables(comparison))


def test_the_csv_keeps_its_contract(comparison: Comparison) -> None:
    assert write_tables(comparison)["comparison.csv"].startswith(CONTRACT)
    primary = [
        (r["task"], r["metric"], r["arm"], r["n"], r["verdict"]) for r in rows(comparison) if r["token_agreement"]
    ]
    assert primary == [
        (task, metric, arm, n, "PASS")
        for task, metric, n in (("gsm8k_canary", "exact_match", "250"), ("aime25_canary", "avg@4", "120"))
        for arm in ("stock", "patched")
    ]
    keys = [(r["task"], r["metric"], r["arm"]) for r in rows(comparison)]
    assert len(set(keys)) == len(keys)


def test_the_csv_rounds_nothing_and_leaves_what_is_unknown_empty(comparison: Comparison) -> None:
    eager = next(r for r in rows(comparison) if r["arm"] == "eager" and r["metric"] == "exact_match")
    score = comparison.tasks[0].score("eager")
    assert score is not None
    assert score.interval is not None
    assert (float(eager["value"]), float(eager["ci_low"])) == (score.value, score.interval.low)
    assert eager["token_agreement"] == ""


def test_an_arm_without_answers_has_a_row_that_says_so() -> None:
    samples = {"gsm8k_canary": {"eager": answers("eager", np.ones(30)), "stock": []}}
    found = judge(samples, run=run_of(["eager", "stock"]))
    stock = next(r for r in rows(found) if r["arm"] == "stock")
    assert (stock["n"], stock["value"], stock["metric"]) == ("0", "", "exact_match")


def test_the_json_is_strict_and_reads_back(comparison: Comparison) -> None:
    text = write_tables(comparison)["comparison.json"]

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    json.loads(text, parse_constant=refuse)
    assert parse(text) == comparison


def test_an_undefined_figure_is_null_with_its_reason() -> None:
    """Case 15: no NaN, but a word."""
    arms = {arm: answers(arm, np.ones(30)) for arm in ("eager", "stock", "patched")}
    recovery = json.loads(write_tables(judge({"t": arms}))["comparison.json"])["tasks"][0]["recovery"][0]
    assert recovery["value"] is None
    assert recovery["reason"] == "stock loses nothing against eager"
    gone = {
        "t": {"eager": answers("eager", np.ones(30)), "patched": [lost(s) for s in answers("patched", np.ones(30))]}
    }
    assert "NaN" not in write_tables(judge(gone))["comparison.json"]


def test_a_newer_comparison_is_refused_by_name(comparison: Comparison) -> None:
    with pytest.raises(RecordError, match="schema version 99"):
        parse(write_tables(replace(comparison, schema_version=99))["comparison.json"])


def test_the_page_states_verdict_figures_and_what_is_only_quoted(comparison: Comparison) -> None:
    page = write_tables(comparison)["comparison.md"]
    assert page.startswith("# test: PASS\n")
    assert "engine: emulated (CPU miniature)   model: canary-v3   2026-12-01" in page
    assert "| 30\u00d74 |" in page
    assert r"published, DeepSeek-V4-Flash (vLLM \#42444): gsm8k 0.169 → 0.954, aime25 0.000 → 0.942" in page
    assert "not measured here" in page
    assert "false alarm" in page
    assert "first differing token 3, median 3, latest 3" in page
    assert re.search(r"lost \(document.*\): .* and \d+ more", page)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a|b\nc", "\x1b[31mred", "x\u202egnp", "[link](javascript:x)"]
)
def test_names_from_outside_carry_no_markup(comparison: Comparison, name: str) -> None:
    page = write_tables(replace(comparison, model=name, name=name))["comparison.md"]
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "[link](" not in page.replace("\\[", "")
