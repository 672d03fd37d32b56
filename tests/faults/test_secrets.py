"""Secrets planted in the environment reach no file, no log and no message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalharness.assess import assess
from evalharness.redact import HIDDEN, redact, secrets
from evalharness.reports import write_tables
from evalharness.runner import local
from evalharness.spec import parse_spec
from tests.engines.openai_server import Reply, Script, serving
from tests.faults.scripted import Scripted, small_spec

ROOT = Path(__file__).parents[2]
TASK = "gsm8k_canary"
PLANTED = {
    "HF_TOKEN": "hf_plantedAAAAAAAAAAAAAAAA",
    "OPENAI_API_KEY": "sk-plantedBBBBBBBBBBBBBBBB",
    "AWS_SECRET_ACCESS_KEY": "plantedCCCCCCCCCCCCCCCC",
    "DB_PASSWORD": "plantedDDDDDDDD",
}


def planted_in(folder: Path, *texts: str) -> list[str]:
    found = [name for name, secret in PLANTED.items() for text in texts if secret in text]
    for path in folder.rglob("*"):
        if path.is_file():
            found += [
                f"{name} in {path.name}" for name, secret in PLANTED.items() if secret.encode() in path.read_bytes()
            ]
    return found


def test_secrets_of_the_environment_reach_no_file(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, secret in PLANTED.items():
        monkeypatch.setenv(name, secret)
    folder = local.start(small_spec(), tmp_path)
    for name, text in write_tables(assess(folder)).items():
        folder.write_text(name, text)
    assert scripted.opened == 1
    assert planted_in(tmp_path) == []


def test_a_server_that_quotes_its_key_does_not_get_it_into_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, secret in PLANTED.items():
        monkeypatch.setenv(name, secret)
    key = PLANTED["OPENAI_API_KEY"]
    script = Script(lambda _: "4", key=key)
    with serving(script) as url:
        raw = small_spec().model_dump() | {
            "engine": {"kind": "endpoint", "api_key_env": "OPENAI_API_KEY", "max_retries": 0}
        }
        spec = parse_spec({**raw, "arms": [f"eager={url}"]})

        def quote(_: object) -> Any:
            return Reply(400, {"error": {"message": f"bad request with key {key}"}})

        script.answer = quote
        folder = local.start(spec, tmp_path)
    assert "[hidden]" in str(folder.read_samples(TASK, "eager")[0].error)
    assert planted_in(tmp_path) == []


def test_a_child_that_prints_its_environment_does_not_get_it_into_a_log(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from evalharness.engines import base\n"
        "from evalharness.runner import local\n"
        "from tests.faults.scripted import small_spec\n"
        "base.ENGINES['emulated'] = ('tests.faults.printing_engine', 'prints')\n"
        "local.start(small_spec(), Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **PLANTED},
        capture_output=True,
        text=True,
        check=True,
    )
    logs = "".join(path.read_text() for path in tmp_path.glob("*/logs/*.log"))
    assert "HF_TOKEN=[hidden]" in logs
    assert planted_in(tmp_path, done.stdout, done.stderr) == []


def test_secrets_are_found_by_name_and_ordinary_values_are_left_alone() -> None:
    environment = {**PLANTED, "HOME": "/home/planted-user", "MY_KEY": "short", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}
    assert set(secrets(environment)) == set(PLANTED.values())
    longer = {"A_KEY": "plantedDDDDDDDD", "B_KEY": "plantedDDDDDDDD-and-more"}
    assert redact("x plantedDDDDDDDD-and-more y", secrets(longer)) == f"x {HIDDEN} y"
