"""The table a run ends with fits a terminal and says what it must."""

import io
from dataclasses import replace

import numpy as np
from rich.console import Console

from evalharness.records import Comparison
from evalharness.reports.terminal import render
from tests.synthetic import answers, faulty_release, judge, run_of


def shown(found: Comparison, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(render(found))
    return out.getvalue()


def test_engine_model_and_date_stand_above_the_figures() -> None:
    text = shown(judge(faulty_release()))
    assert text.startswith("engine: emulated (CPU miniature)   model: canary-v3   2026-12-01")
    for words in ("gsm8k_canary", "aime25_canary", "avg@4", "30\u00d74", "0.000", "PASS", "recovery", "verdict"):
        assert words in text


def test_it_fits_a_hundred_columns_with_five_arms() -> None:
    arms = ("eager", "eager#2", "stock", "patched", "native")
    found = judge({"gsm8k_canary": {arm: answers(arm, np.ones(250)) for arm in arms}})
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 100
    assert all(arm in text for arm in arms)
    assert "1.000" in text


def test_three_arms_fit_eighty_columns_without_a_folded_figure() -> None:
    found = judge(faulty_release())
    narrow = shown(found, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert _words(narrow) == _words(shown(found))


def _words(text: str) -> list[str]:
    """All but the rules, whose length is the table's."""
    return [word for word in text.split() if set(word) != {"\u2500"}]


def test_a_missing_arm_is_a_dash() -> None:
    samples = {"gsm8k_canary": {"eager": answers("eager", np.ones(250)), "native": answers("native", np.ones(250))}}
    found = judge(samples, run=run_of(["eager", "native", "stock"]))
    assert "—" in shown(found)
    assert "Arm stock has not finished" in shown(found)


def test_published_figures_are_marked_as_not_measured() -> None:
    figures = {
        "gsm8k": {"source": "vLLM #42444", "model": "DeepSeek-V4-Flash", "arms": {"stock": 0.169, "patched": 0.954}}
    }
    text = shown(judge(faulty_release(), published=figures), width=200)
    assert "published, DeepSeek-V4-Flash (vLLM #42444): gsm8k 0.169 → 0.954 — not measured here" in text


def test_no_name_reaches_the_terminal_as_a_command() -> None:
    found = replace(judge(faulty_release()), model="\x1b]0;owned\x07[bold red]x[/]")
    text = shown(found)
    assert "\x1b" not in text
    assert "[bold red]x[/]" in text


def test_nothing_to_compare_is_said() -> None:
    assert "No task has an answer yet" in shown(judge({}, run=run_of(["eager"])))
