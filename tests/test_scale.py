"""What docs/SCALE.md says is what its committed figures say, and one simulated run is a real one."""

import json
import re
from pathlib import Path

from benchmarks.scale_night import ARMS, SOURCES, Job, evaluate
from benchmarks.simulate_scale import BLOCK, RESULT, render
from evalharness.store import RunFolder, list_runs

PAGE = Path(__file__).parents[1] / "docs" / "SCALE.md"


def test_the_page_shows_the_committed_figures() -> None:
    shown = BLOCK.search(PAGE.read_text())
    assert shown
    assert shown[0].split("\n", 1)[1].rsplit("\n", 1)[0] == render(json.loads(RESULT.read_text()))


def test_a_simulated_run_is_made_by_the_real_store(tmp_path: Path) -> None:
    figures = evaluate(Job(tmp_path, build=0, model=0, documents=6))
    (path,) = list_runs(tmp_path)
    folder = RunFolder(path)
    assert figures["samples"] == len(SOURCES) * len(ARMS) * 6
    assert figures["checked"]  # compared and verified again after it was packed
    assert figures["packed"] < figures["raw"]
    texts = {sample.response for sample in folder.read_samples("task-00", "eager")}
    assert len(texts) > 1
    assert folder.read_run().finished
    assert re.fullmatch(r".*Z-nightly-[0-9a-f]{8}", path.name)
