"""The sign-off record and its HTML, Markdown, JSON and JUnit views, read as a person or a machine reads them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from evalharness.assess import read_stored
from evalharness.errors import UnknownName
from evalharness.records import ArmState, Outcome
from evalharness.reports import SIGNOFF, html, junit, signoff_markdown, write_signoff
from evalharness.reports.charts import charts, svg
from evalharness.reports.signoff import Signoff, build
from evalharness.reports.signoff_tables import Table
from evalharness.reports.visible import Piece
from evalharness.store import RunFolder
from tests.stored_runs import proof, stored_run


def signoff_of(folder: RunFolder) -> Signoff:
    stored = read_stored(folder)
    return build(stored, stored.comparison)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Signoff:
    return signoff_of(stored_run(tmp_path_factory.mktemp("passed")))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Signoff:
    return signoff_of(stored_run(tmp_path_factory.mktemp("hostile"), hostile=True))


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Signoff:
    accuracy = {"eager": 0.97, "stock": 0.05, "patched": 0.97}
    folder = stored_run(tmp_path_factory.mktemp("failed"), accuracy=accuracy)
    worse = folder.samples_path("gsm8k_canary", "stock").read_text().replace('"arm":"stock"', '"arm":"patched"')
    folder.samples_path("gsm8k_canary", "patched").write_text(worse)
    return signoff_of(folder)


class Page(HTMLParser):
    """Tags with their attributes, and the text that shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.inside):
            self.shown.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.shown))

    def count(self, tag: str, **attributes: str) -> int:
        return sum(t == tag and attributes.items() <= a.items() for t, a in self.tags)


def cell(table: Table, row: str, column: str, group: str = "") -> str:
    found = next(r for r in table.rows if r.head == row and (not group or r.group == group))
    return found.cells[table.columns.index(column)].text


# --- what it says ----------------------------------------------------------------------------------------


def test_the_verdict_is_a_sentence_with_engine_model_n_and_date(passed: Signoff) -> None:
    assert passed.comparison.verdict.outcome is Outcome.PASS
    assert "patched holds the accuracy of eager" in passed.headline
    for word in (
        "canary-v3",
        "emulated (CPU miniature)",
        "gsm8k_canary n 250",
        "aime25_canary n 30\u00d74",
        "2026-12-01",
    ):
        assert word in passed.subject
    assert "may be signed off" in passed.advice


def test_a_failing_arm_is_named_and_signing_off_refused(failed: Signoff) -> None:
    assert failed.comparison.verdict.outcome is Outcome.FAIL
    assert failed.headline == "patched does not hold the accuracy of eager (gsm8k_canary)."
    assert failed.advice.startswith("Do not sign off")
    assert cell(failed.results, "patched", "verdict", "gsm8k_canary") == "FAIL"


def test_evidence_says_shared_or_fresh_and_where_the_planning_kernel_is(passed: Signoff) -> None:
    assert cell(passed.evidence, "state of warm-up and capture", "stock") == "shared"
    assert cell(passed.evidence, "state of warm-up and capture", "patched") == "fresh"
    assert cell(passed.evidence, "planning kernel in the graph", "stock") == "0 of 6 graphs"
    assert cell(passed.evidence, "planning kernel in the graph", "patched") == "6 of 6 graphs"
    assert cell(passed.evidence, "full-graph replays", "eager") == "0"
    assert cell(passed.evidence, "eager steps", "eager") == "1,840"


def test_an_arm_that_ran_another_path_shows_what_was_asked_and_what_was_seen(tmp_path: Path) -> None:
    folder = stored_run(tmp_path)
    seen = {**proof("patched").observed, "cudagraph_mode": "PIECEWISE"}
    folder.write_evidence(proof("patched", observed=seen))
    found = signoff_of(folder)
    row = next(r for r in found.evidence.rows if r.head == "cudagraph mode")
    assert (row.cells[2].text, row.cells[2].small, row.cells[2].tone) == (
        "PIECEWISE", "requested FULL_DECODE_ONLY", "bad",
    )  # fmt: skip
    assert found.comparison.verdict.outcome is Outcome.INVALID
    assert cell(found.evidence, "proof", "patched") == "missing"


def test_an_arm_without_evidence_is_shown_as_having_none(tmp_path: Path) -> None:
    folder = stored_run(tmp_path)
    (folder.path / "evidence" / "stock.json").unlink()
    found = signoff_of(folder)
    assert found.evidence.columns == ("eager", "stock", "patched")
    assert cell(found.evidence, "proof", "stock") == "missing"
    assert cell(found.costs, "capture time", "stock") == "—"


def test_costs_of_the_fix_stand_side_by_side(passed: Signoff) -> None:
    assert cell(passed.costs, "graph memory", "stock") == cell(passed.costs, "graph memory", "patched") == "4.0 MiB"
    assert cell(passed.costs, "graph memory", "patched over stock") == "+0 B"
    assert cell(passed.costs, "speed while answering", "eager") == "5,210 tokens/s"
    assert cell(passed.costs, "capture time", "patched") == "0.21 s"


MEASURED = ("capture_seconds", "graph_bytes", "decode_tokens_per_s", "output_tokens", "fixed_decode_tokens_per_s")
RAMBLING = {"stock": (2.0, 3 << 20, 200.0, 2000.0, 100.0), "patched": (2.5, 4 << 20, 80.0, 1000.0, 99.0)}


def measured_run(folder: RunFolder, count: int) -> RunFolder:
    """A run of vLLM whose stock arm wrote twice the tokens; the first `count` of MEASURED were measured."""
    for arm, costs in RAMBLING.items():
        named = dict(zip(MEASURED[:count], costs, strict=False))
        folder.write_evidence(proof(arm, engine="vllm", costs=named))
    return folder


def test_the_cost_of_the_repair_is_one_sentence_and_one_column(tmp_path: Path) -> None:
    folder = stored_run(tmp_path)
    assert "graph memory +0 B" in signoff_of(folder).facts[-1]
    found = signoff_of(measured_run(folder, len(MEASURED)))
    assert found.facts[-1] == (
        "Cost of patched over stock, measured once: graph memory +1.0 MiB, capture time +0.50 s,"
        " decode speed at fixed length -1.0%"
    )
    assert cell(found.costs, "decode speed at fixed length", "patched over stock") == "-1.0%"
    assert cell(found.costs, "tokens written", "stock") == "2,000"
    assert "largest captured batch" in found.costs.about


def test_the_speed_of_answers_whose_length_the_arm_decides_is_not_compared(tmp_path: Path) -> None:
    found = signoff_of(measured_run(stored_run(tmp_path), 4))
    assert found.facts[-1].endswith("decode speed at fixed length not measured")
    assert cell(found.costs, "speed while answering", "patched over stock") == "—"
    assert "depends on what the arm writes" in found.costs.about


def test_the_miniatures_speed_is_not_told_as_a_cost(passed: Signoff) -> None:
    assert not any("speed" in fact or "capture +" in fact for fact in passed.facts)


def test_causes_count_every_answer(passed: Signoff) -> None:
    for row in passed.causes.rows:
        assert sum(int(c.text) for c in row.cells) == (250 if row.group == "gsm8k_canary" else 120)


def test_limits_name_the_engine_the_published_figures_and_the_missing_noise_floor(passed: Signoff) -> None:
    words = " ".join(passed.limits)
    assert "not those of vLLM" in words
    assert "0.169 → 0.954" in words
    assert "not measured here" in words
    assert "No arm ran twice" in words


def test_a_second_run_of_an_arm_gives_the_noise_floor(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, {"gsm8k_canary": (250, 1)}, arms=("eager", "eager#2", "stock", "patched"))
    found = signoff_of(folder)
    assert any("eager and eager#2 differ by" in line for line in found.noise)
    assert not any("No arm ran twice" in line for line in found.limits)


def test_flips_show_both_answers_with_the_first_difference_marked(passed: Signoff) -> None:
    flips = next(f for f in passed.flips if (f.task, f.arm) == ("gsm8k_canary", "stock"))
    assert flips.losses > 200
    pair = flips.lost[0]
    assert pair.token is not None
    for answer in (pair.baseline, pair.arm):
        marks = [piece.text for piece in answer.text if piece.kind == "mark"]
        assert len(marks) == 1
        assert marks[0]
    shared = [piece.text for piece in pair.baseline.text if piece.kind == "text"][: 1 if pair.character else 0]
    assert all(pair.arm.text[0].text == text for text in shared)


def test_judged_arms_come_before_the_stock_arm(failed: Signoff) -> None:
    assert failed.flips[0].arm == "patched"


# --- HTML ------------------------------------------------------------------------------------------------


def test_the_page_needs_no_network_and_no_script(passed: Signoff) -> None:
    text = html.render(passed)
    page = Page(text)
    assert not page.count("script")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    assert "@import" not in text
    assert "url(" not in text
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy


def test_the_page_can_be_walked_by_a_screen_reader(passed: Signoff) -> None:
    page = Page(html.render(passed))
    assert next(a for t, a in page.tags if t == "html")["lang"] == "en"
    assert [page.count(tag) for tag in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    assert page.count("a", href="#main") == 1
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    named = {name for _, a in page.tags for name in (a.get("aria-labelledby") or "").split()}
    assert named <= set(ids)
    assert page.count("table") == page.count("caption")
    assert all(a.get("scope") in {"col", "row", "rowgroup"} for t, a in page.tags if t == "th")
    assert page.count("svg", role="img") == 2
    assert page.count("desc") == 2


def test_every_figure_of_the_results_is_on_the_page(passed: Signoff) -> None:
    text = Page(html.render(passed)).text
    for row in passed.results.rows:
        for figure in row.cells:
            assert figure.text in text
            assert figure.small in text


def test_the_charts_say_in_words_what_they_draw(passed: Signoff) -> None:
    accuracy, recovery = charts(passed.comparison)
    assert "gsm8k_canary, stock: 0.060 [0.037, 0.097]." in accuracy.description
    assert "gsm8k_canary, patched: 1.000" in recovery.description
    root = ET.fromstring(svg(accuracy))  # noqa: S314 - our own drawing
    assert root.find("desc").text == accuracy.description


def test_a_failed_arm_differs_in_shape_not_only_in_colour(passed: Signoff) -> None:
    drawing = svg(charts(passed.comparison)[0])
    assert drawing.count('<path class="dot bad"') == 2
    assert drawing.count("<circle") == 4


def test_the_full_report_has_more_answers_than_the_sign_off(passed: Signoff) -> None:
    brief, full = html.render(passed), html.render_full(passed)
    assert Page(brief).count("article") < Page(full).count("article")
    assert len(full.encode()) < 2_000_000


def test_a_report_of_many_arms_stays_under_two_megabytes(passed: Signoff) -> None:
    lost = next(flips for flips in passed.flips if flips.lost).lost
    text = (Piece("text", "word " * 44), Piece("mark", "x"), Piece("text", "& <b> " * 100))
    long = replace(lost[0], arm=replace(lost[0].arm, text=text), baseline=replace(lost[0].baseline, text=text))
    many = [replace(passed.flips[0], arm=f"arm{i}", lost=(long,) * 20, gained=(long,) * 20) for i in range(30)]
    page = html.render_full(replace(passed, flips=tuple(many)))
    assert len(page.encode()) < 2_000_000
    assert all(f"arm{i} against" in page for i in range(30))


# --- hostile answers -------------------------------------------------------------------------------------


def test_hostile_answers_show_as_text(hostile: Signoff) -> None:
    text = html.render_full(hostile)
    page = Page(text)
    assert not page.count("script")
    assert not page.count("img")
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in page.text
    assert "{{ 7*7 }}" in page.text
    for char in ("\x1b", "\x00", "\x07", "\x85", "\u202e", "\u2066", "\u200b", "\u2028"):
        assert char not in text
    assert "␛" in page.text
    assert "␀" in page.text
    assert "⟨U+202E⟩" in page.text


def test_a_megabyte_of_one_letter_takes_a_line(hostile: Signoff) -> None:
    assert any(len(p.arm.text) > 1 and "A" * 12 in p.arm.text[0].text for f in hostile.flips for p in f.lost)
    for content in write_signoff(hostile, SIGNOFF).values():
        assert len(content) < 400_000
        assert b"A" * 100 not in content


def test_markdown_keeps_hostile_answers_inside_their_block(hostile: Signoff) -> None:
    text = signoff_markdown.render(hostile)
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("<details>") == text.count("</details>")
    assert text.count("<pre>") == text.count("</pre>")


def test_a_hostile_name_is_text_in_every_format(passed: Signoff) -> None:
    name = "<b>x</b>|`\x1b[1m\u202e"
    renamed = replace(passed, comparison=replace(passed.comparison, name=name, model=name, run_id=name))
    for file, content in write_signoff(renamed, ("html", "md", "junit", "pdf")).items():
        if not file.endswith(".pdf"):
            assert b"<b>x" not in content
            assert b"\x1b" not in content
            assert "\u202e".encode() not in content


# --- Markdown, JUnit, JSON -------------------------------------------------------------------------------


def test_markdown_fits_a_pull_request_comment(passed: Signoff) -> None:
    text = signoff_markdown.render(passed)
    assert text.startswith("## ✅ PASS: test\n")
    assert len(text) < 65_536
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in rows[:8]}
    assert widths == {len(passed.results.columns) + 3}


def test_junit_reports_a_failure_as_a_failure(failed: Signoff) -> None:
    root = ET.fromstring(junit.render(failed))  # noqa: S314 - our own document
    assert int(root.get("failures", 0)) == 2
    suite = next(s for s in root if s.get("name") == "gsm8k_canary")
    assert [c.get("name") for c in suite.iter("testcase") if c.find("failure") is not None] == ["recovered", "verdict"]
    assert int(root.get("tests", 0)) == len(list(root.iter("testcase")))


def test_junit_of_a_passing_run_has_nothing_failed_or_skipped(passed: Signoff) -> None:
    root = ET.fromstring(junit.render(passed))  # noqa: S314 - our own document
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "0", "0")


def test_an_undecided_run_is_skipped_not_passed(tmp_path: Path) -> None:
    found = signoff_of(stored_run(tmp_path, {"gsm8k_canary": (12, 1)}))
    assert found.comparison.verdict.outcome is Outcome.INCONCLUSIVE
    root = ET.fromstring(junit.render(found))  # noqa: S314 - our own document
    assert int(root.get("skipped", 0)) >= 1
    assert root.get("failures") == "0"


def test_json_holds_the_unrounded_comparison(passed: Signoff) -> None:
    text = write_signoff(passed, ["json"])["signoff.json"].decode()
    loaded = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert loaded["comparison"]["tasks"][0]["scores"][0]["value"] == passed.comparison.tasks[0].scores[0].value
    assert loaded["schema_version"] == 1


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(UnknownName, match="Did you mean: junit"):
        write_signoff(None, ["junitt"])  # type: ignore[arg-type]


# --- runs that did not go to plan ------------------------------------------------------------------------


def nothing_answered(folder: RunFolder) -> None:
    shutil.rmtree(folder.path / "samples")
    shutil.rmtree(folder.path / "evidence")
    run = folder.read_run()
    failed = tuple(replace(arm, state=ArmState.FAILED, message="out of memory") for arm in run.arms)
    folder.write_run(replace(run, arms=failed, finished=None))


def patched_failed(folder: RunFolder) -> None:
    folder.samples_path("gsm8k_canary", "patched").unlink()
    run = folder.read_run()
    arms = tuple(
        replace(arm, state=ArmState.FAILED, message="\x1b[31mdied\n<b>") if arm.name == "patched" else arm
        for arm in run.arms
    )
    folder.write_run(replace(run, arms=arms))


@pytest.mark.parametrize(
    ("arms", "spoil", "outcome", "words"),
    [
        (("eager", "stock", "patched"), nothing_answered, Outcome.ERROR, "Infrastructure failed"),
        (("eager", "stock", "patched"), patched_failed, Outcome.ERROR, "Infrastructure failed"),
        (("eager",), None, Outcome.INCONCLUSIVE, "Too little was measured"),
        (("stock", "patched"), None, Outcome.INCONCLUSIVE, "Too little was measured"),
        (("eager", "native"), None, Outcome.PASS, "native holds the accuracy of eager"),
    ],
)
def test_every_kind_of_run_has_its_report(
    tmp_path: Path,
    arms: tuple[str, ...],
    spoil: Callable[[RunFolder], None] | None,
    outcome: Outcome,
    words: str,
) -> None:
    accuracy = {"eager": 0.97, "stock": 0.05, "patched": 0.97, "native": 0.97}
    folder = stored_run(tmp_path, {"gsm8k_canary": (250, 1)}, arms=arms, accuracy=accuracy)
    if spoil:
        spoil(folder)
    found = signoff_of(folder)
    assert found.comparison.verdict.outcome is outcome
    assert words in found.headline
    made = write_signoff(found, SIGNOFF)
    assert outcome.value in Page(made["signoff.html"].decode()).text
    assert outcome.value in made["signoff.md"].decode()
    cases = ET.fromstring(made["junit.xml"]).iter("testcase")  # noqa: S314 - our own document
    verdict = next(case for case in cases if case.get("name") == "verdict")
    assert (verdict.find("failure") is None and verdict.find("error") is None) == (outcome is not Outcome.ERROR)
    assert b"\x1b[31m" not in made["signoff.html"]
