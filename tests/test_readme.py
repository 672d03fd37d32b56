"""Commands of the README exist with their options, its figures are the measured ones, links lead somewhere."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evalharness.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
COMMAND = re.compile(r"(?:python -m )?evalharness( .*)?$")


def commands(text: str) -> list[list[str]]:
    """Arguments of every evalharness command in the shell blocks of a page."""
    found = []
    for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\||[|;]", line.split(" #")[0]):
                match = COMMAND.fullmatch(part.strip().removeprefix("$ "))
                if match:
                    found.append(shlex.split(match.group(1) or ""))
    return found


def test_the_readme_shows_how_to_run_and_how_to_test() -> None:
    text = (ROOT / "README.md").read_text()
    assert ["run"] in commands(text)
    assert "python -m pytest" in text


def test_the_tables_are_those_of_the_committed_records() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "readme_tables.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run scripts/readme_tables.py"


def test_the_figures_it_quotes_are_the_measured_ones() -> None:
    page = " ".join((ROOT / "README.md").read_text().split())
    results = ROOT / "benchmarks" / "results"
    on_cpu = json.loads((results / "performance.json").read_text())
    measured = {row["name"]: row["ratio"] for row in on_cpu["ratios"]}
    sizes = {row["name"]: {size["n"]: size["cpu_s"] for size in row["sizes"]} for row in on_cpu["growth"]}
    on_gpu = {row["name"]: row["ratio"] for row in json.loads((results / "vllm.json").read_text())["rows"]}
    for words in (
        f"take {measured['bare']:.2f} times the processor time",
        f"{measured['lm_eval']:.2f} times that of `lm_eval` run once per arm",
        f"({measured['lm_eval_lean']:.2f} when `lm_eval` is spared",
        f"take {on_gpu['loads']:.2f} times the wall time of three loads",
        f"two arms {on_gpu['lm_eval']:.2f} times that of `lm_eval` twice",
        f"answering {on_gpu['bare']:.2f} times that of a bare",
        f"A million answers are compared in {sizes['compare RUN'][1_000_000]:.0f} s of a processor",
    ):
        assert words in page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_shown_exists_with_its_options(page: Path) -> None:
    runner = CliRunner()
    for arguments in commands(page.read_text()):
        words = [word for word in arguments if not word.startswith("-")]
        path = words[:2] if words and words[0] in {"dashboard", "schedule", "import"} else words[:1]
        help_text = runner.invoke(app, [*path, "--help"])
        assert help_text.exit_code == 0, arguments
        for option in (word.split("=")[0] for word in arguments if word.startswith("--")):
            known = help_text.output + runner.invoke(app, ["--help"]).output
            assert option in known, f"{' '.join(arguments)}: no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
