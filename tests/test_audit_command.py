"""`evalharness audit` and `doctor`, as a user sees them on a machine without a GPU."""

import pytest
from typer.testing import CliRunner

from evalharness.cli import app

runner = CliRunner()


def test_audit_says_whether_the_capture_state_is_isolated() -> None:
    result = runner.invoke(app, ["audit", "canary-v3"])
    assert result.exit_code == 0
    assert "capture state is isolated" in result.output
    stock = next(line for line in result.output.splitlines() if line.startswith("stock"))
    assert "6/6" in stock


def test_doctor_names_the_mending_command_of_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "weights in the package" in result.output
    assert "takes profile" in result.output


def test_lists_name_what_can_be_asked_for() -> None:
    for what, name in (("profiles", "canary-v3"), ("tasks", "gsm8k_canary"), ("arms", "patched"), ("engines", "vllm")):
        assert name in runner.invoke(app, ["list", what]).output
