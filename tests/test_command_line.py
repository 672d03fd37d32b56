"""The command line's own promises: options nothing ignores, faults in one line, specs that can be read back."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from evalharness import cli
from evalharness.records import ArmState
from evalharness.runner.listener import Listener
from tests.stored_runs import stored_run


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of `evalharness WORDS` in this process."""
    monkeypatch.setattr(sys, "argv", ["evalharness", *words])
    monkeypatch.setattr(cli, "_STATE", {"debug": False})
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("words", [("--debug", "run", "canry-v3"), ("run", "canry-v3", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands_and_keeps_the_exit_code(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, *words) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("error: Unknown profile 'canry-v3'. Did you mean: canary-v3?\n")


def test_a_fault_of_this_program_is_one_line_and_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evalharness.commands.looking.examine", lambda _: 1 / 0)
    assert called(monkeypatch, "doctor") == 5
    line = capsys.readouterr().err
    assert line.startswith("error: ZeroDivisionError: division by zero. This is a fault of evalharness; --debug")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--limit", "3"), "--limit"),
        (("--set", "seed=1"), "--set"),
        (("canary-v3", "--arms", "eager"), "a profile, --arms"),
    ],
)
def test_resume_refuses_an_option_it_would_ignore(
    words: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "run", "--resume", "latest", *words) == 2
    assert f"; {named} cannot change it. Leave it out." in capsys.readouterr().err


def test_a_dry_run_prints_yaml_that_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "long words " * 30
    assert called(monkeypatch, "run", "canary-v3", "--set", f"description={words}", "--dry-run") == 0
    assert yaml.safe_load(capsys.readouterr().out)["description"] == words.strip()
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_a_resumption_shows_the_stored_spec_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored_run(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert called(monkeypatch, "run", "--resume", folder.path.name, "--out", str(tmp_path), "--dry-run") == 0
    assert yaml.safe_load(capsys.readouterr().out) == folder.read_run().spec
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_compared_anew_keeps_no_report_of_its_earlier_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored_run(tmp_path, {"gsm8k_canary": (250, 1)})
    run = folder.read_run()
    unfinished = replace(run.arms[-1], state=ArmState.RUNNING)
    folder.write_run(replace(run, arms=(*run.arms[:-1], unfinished)))
    place = ("--out", str(tmp_path))
    assert called(monkeypatch, "report", "latest", "--results", str(tmp_path), "--format", "html,md") == 3
    folder.write_run(run)
    assert called(monkeypatch, "compare", "latest", *place) == 0
    assert called(monkeypatch, "verify", "latest", *place) == 0, capsys.readouterr().out
    assert "<title>PASS" in (folder.path / "signoff.html").read_text()


def test_a_folder_that_may_not_be_written_is_not_called_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert called(monkeypatch, "run", "canary-v3", "--limit", "2", "--out", str(tmp_path / "file")) == 5
    assert capsys.readouterr().err.endswith("file: File exists. Choose another folder with --out.\n")


@pytest.mark.parametrize(
    ("run_id", "out", "words"),
    [
        ("", "results", "nothing was changed; give the same command again"),
        ("20261201T120000Z-a-abababab", "results", "evalharness run --resume 20261201T120000Z-a-abababab"),
        ("20261201T120000Z-a-abababab", "my results", "--resume 20261201T120000Z-a-abababab --out 'my results'"),
    ],
)
def test_an_interrupted_user_is_told_the_command_that_goes_on(
    run_id: str, out: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_spec: object, _out: object, listener: Listener, _executor: object) -> None:
        if run_id:
            listener.run_started(run_id, 3, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr("evalharness.runner.local.start", interrupted)
    assert called(monkeypatch, "run", "canary-v3", "--out", out) == 130
    assert capsys.readouterr().out.endswith(f"{words}\n")


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'scipy', 'lm_eval', 'pydantic', 'yaml', 'datasets', 'torch', 'rich'}"
    probe = f"import sys, evalharness.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_its_answers_and_says_how_to_go_on(stop: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evalharness", "run", "canary-v3", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + 180
        while not any(tmp_path.glob("*/samples/*/*.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(stop)
        said, _ = process.communicate(timeout=120)
    (run,) = tmp_path.iterdir()
    assert process.returncode == 130
    assert said.strip().endswith(f"evalharness run --resume {run.name} --out {tmp_path}")
    assert any(path.stat().st_size for path in run.glob("samples/*/*.jsonl"))
