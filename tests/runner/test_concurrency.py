"""Case 4: an arm that garbles only when requests run side by side is told from one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.assess import assess
from evalharness.records import Outcome
from evalharness.reports.words import concurrency_lines
from evalharness.runner import local, replica
from evalharness.scoring.tasks import Item
from evalharness.spec import load_spec
from tests.runner.scripted import Scripted, sound_but_stock

# The same prompt four times over, greedy: the four run side by side unless an arm takes one at a time.
TASKS = "tasks=[{name: gsm8k_canary, limit: 40, repeats: 4}]"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted()
    monkeypatch.setattr(replica, "create_engine", lambda _: made)
    return made


def test_an_arm_gets_no_more_requests_at_a_time_than_its_name_says(engine: Scripted, tmp_path: Path) -> None:
    folder = local.start(load_spec("canary-v3", [TASKS, "arms=[eager, 'patched@7', 'patched@1']"]), tmp_path)
    sizes = {arm: [size for name, size in engine.calls if name == arm] for arm in ("eager", "patched@7", "patched@1")}
    assert sizes == {"eager": [160], "patched@7": [7] * 22 + [6], "patched@1": [1] * 160}
    assert [len(folder.read_samples("gsm8k_canary", arm)) for arm in sizes] == [160] * 3
    assert "asked in waves of at most 7 requests" in folder.read_evidence()["patched@7"].notes


def test_garbling_side_by_side_is_reported_as_dependence_on_concurrency(engine: Scripted, tmp_path: Path) -> None:
    def garbles_in_company(arm: str, item: Item) -> str | None:
        alone = engine.calls[-1][1] == 1
        return sound_but_stock(arm, item) if alone or arm.startswith("eager") or item.doc_id % 3 else "]]}} the the"

    engine.reply = garbles_in_company
    arms = "arms=[eager, 'eager@1', patched, 'patched@1', 'patched@32']"
    found = assess(local.start(load_spec("canary-v3", [TASKS, arms]), tmp_path))
    lines = concurrency_lines(found.tasks[0])
    assert len(lines) == 3
    assert lines[0].startswith("patched depends on concurrency: ")
    assert "0.650 of answers agree between 1 and 32 requests at a time; 1.000 and 0.650 right, 56 lost" in lines[0]
    assert "between 1 and any number of requests at a time" in lines[1]
    assert lines[2] == "the same answers with 1 and any number of requests at a time: eager"
    assert found.verdict.outcome is Outcome.FAIL


def test_a_pace_beside_the_unlimited_arm_decides_nothing(engine: Scripted, tmp_path: Path) -> None:
    engine.reply = lambda arm, item: sound_but_stock("stock" if arm == "patched@8" else arm, item)
    arms = "arms=[eager, patched, 'patched@8']"
    found = assess(local.start(load_spec("canary-v3", [TASKS, arms]), tmp_path))
    assert found.verdict.outcome is Outcome.PASS
    assert concurrency_lines(found.tasks[0])[0].startswith("patched depends on concurrency")


def test_a_pace_without_the_unlimited_arm_decides(engine: Scripted, tmp_path: Path) -> None:
    engine.reply = lambda arm, item: sound_but_stock("stock" if arm == "patched@8" else arm, item)
    found = assess(local.start(load_spec("canary-v3", [TASKS, "arms=[eager, 'patched@1', 'patched@8']"]), tmp_path))
    assert found.verdict.outcome is Outcome.FAIL
