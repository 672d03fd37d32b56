"""What docs/PERFORMANCE.md says is what its committed figures say, and the benchmarks tell linear from worse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench_report, measure, performance_page
from evalharness.assess import read_stored
from evalharness.store import RunFolder

PAGE = Path(__file__).parents[1] / "docs" / "PERFORMANCE.md"


def test_the_page_shows_the_committed_figures() -> None:
    page = PAGE.read_text()
    shown = {match[2] for match in performance_page.BLOCK.finditer(page)}
    assert shown == {"machine", "ratios", "gpu", "start", "growth", "sizes", "engine", "profile"}
    assert performance_page.fill(page) == page


def test_the_committed_figures_keep_their_limits() -> None:
    assert performance_page.faults(json.loads(performance_page.RESULT.read_text())) == []
    assert all(row["ratio"] <= row["limit"] for row in json.loads(performance_page.VLLM.read_text())["rows"])


def test_a_gpu_table_shows_what_was_measured_and_on_what() -> None:
    on = {"gpu": [{"name": "NVIDIA H200"}], "packages": {"vllm": "0.22.1"}}
    row = {"name": "bare", "ours_s": [1.0, 3.0, 2.0], "theirs_s": [1.0, 2.0, 2.0], "ratio": 1.0, "limit": 1.05}
    shown = performance_page.gpu_table({"on": on, "profile": "canary", "documents": 250, "rows": [row]})
    assert "NVIDIA H200, vLLM 0.22.1, canary, 250 documents" in shown
    assert "| 2.00 | 2.00 | 1.000 | 1.05 |" in shown


@pytest.mark.parametrize(("power", "faults"), [(0.0, 0), (1.0, 0), (1.1, 0), (1.3, 2)])
def test_growth_faster_than_linear_is_a_fault(power: float, faults: int) -> None:
    cost = [(n, 1.5 + 1e-3 * n**power) for n in (10, 1_000, 10_000, 100_000)]
    sizes = [{"n": n, "cpu_s": grown, "peak_mib": grown} for n, grown in cost]
    found = {"growth": [measure.growth("it", "answers", sizes)]}
    assert len(performance_page.faults(found)) == faults


def test_a_ratio_over_its_limit_is_a_fault() -> None:
    slow, fast = measure.Spent(2.0, 2.0, 100.0), measure.Spent(1.0, 1.0, 100.0)
    assert performance_page.faults({"ratios": [measure.ratio_row("bare", slow, fast, fast, 1.5)]})
    assert not performance_page.faults({"ratios": [measure.ratio_row("bare", fast, slow, fast, 1.5)]})


def test_a_command_is_measured_with_all_its_threads_and_its_memory() -> None:
    work = "held = bytearray(200 * 2**20); sum(range(5_000_000)); print('done')"
    # In a small process: a child's peak is never less than that of whoever measures it.
    small = "import json, sys; from benchmarks.measure import spent; used, said = spent(sys.argv[1:]); "
    small += "print(json.dumps([used.figures(), said]))"
    command = [sys.executable, "-c", small, sys.executable, "-c", work]
    printed = subprocess.run(command, cwd=measure.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    used, said = json.loads(printed)
    assert said == "done\n"
    assert 0 < used["cpu_s"] < used["wall_s"] + 0.5
    assert 200 < used["peak_mib"] < 400
    with pytest.raises(SystemExit, match="exit status 7"):
        measure.spent([sys.executable, "-c", "raise SystemExit(7)"])


def test_a_large_run_is_one_that_the_harness_believes(tmp_path: Path) -> None:
    folder = RunFolder(Path(bench_report.make(str(tmp_path), "1200")["folder"]))
    scores = read_stored(folder).comparison.tasks[0].scores
    assert {score.n for score in scores} == {400}
    assert bench_report.parse(str(folder.path)) == {"answers": 1200}
