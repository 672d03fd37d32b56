"""Servers started for an arm: a cause within seconds, the right model, a port of their own, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from evalharness.engines import serve
from evalharness.engines.serve import Plan, ServedArm, hold_port, vllm_plan
from evalharness.errors import EngineError
from evalharness.spec import ArmSpec, VllmEngine
from tests.engines.test_process import gone

ROOT = Path(__file__).parents[2]
Start = Callable[..., ServedArm]


def plan(behaviour: str, timeout_s: float = 30.0) -> Plan:
    command = (sys.executable, "-m", "tests.engines.fake_server", behaviour)
    flags = ("--model", "m", "--served-model-name", "m", "--host", serve.HOST)
    return Plan("stock", "m", (*command, *flags), {"PYTHONPATH": str(ROOT), "EVALHARNESS_CAPTURE": "stock"}, timeout_s)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(serve, "STOP_S", 1.5)
    made = []

    def make(behaviour: str, timeout_s: float = 30.0) -> ServedArm:
        made.append(ServedArm(plan(behaviour, timeout_s), tmp_path / "stock.log"))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def pid_in(log: Path, word: str) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        text = log.read_text() if log.exists() else ""
        if f"{word} " in text:
            return int(text.split(f"{word} ")[1].split()[0])
        time.sleep(0.05)
    raise AssertionError(f"no {word} in {log}")


def watch(arm: ServedArm, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        arm.check_alive()
        time.sleep(0.05)


def complete(url: str) -> str:
    response = httpx.post(f"{url}/v1/completions", json={"prompt": "2+2=", "max_tokens": 4}, trust_env=False)
    response.raise_for_status()
    return str(response.json()["choices"][0]["text"])


def test_a_server_is_started_checked_and_ended(server: Start, tmp_path: Path) -> None:
    arm = server("fine")
    url = arm.start()
    assert complete(url) == "4"
    arm.check_alive()
    pid = pid_in(tmp_path / "stock.log", "pid")
    arm.stop()
    assert gone(pid)
    assert "capture path stock" in (tmp_path / "stock.log").read_text()


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [("dies", "ValueError: head size 7 is odd"), ("out-of-memory", "CUDA out of memory")],
)
def test_the_cause_of_a_failed_start_is_quoted_within_seconds(server: Start, behaviour: str, cause: str) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match=cause) as caught:
        server(behaviour).start()
    assert time.monotonic() - began < 15
    assert "stock.log" in caught.value.message


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    arm = ServedArm(Plan("stock", "m", ("/no/such/vllm",)), tmp_path / "stock.log")
    with pytest.raises(EngineError, match="No such file"):
        arm.start()


def test_a_server_that_never_answers_is_given_up(server: Start, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="within 2 s"):
        server("hangs", timeout_s=2).start()
    assert gone(pid_in(tmp_path / "stock.log", "pid"))


def test_a_server_of_another_model_is_refused_and_ended(server: Start, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="serves 'another', not 'm'"):
        server("other-model").start()
    assert gone(pid_in(tmp_path / "stock.log", "pid"))


def test_a_healthy_server_that_cannot_answer_is_refused(server: Start) -> None:
    with pytest.raises(EngineError, match="Unrecognized request argument"):
        server("cannot-answer").start()


def test_a_fatal_line_while_serving_ends_the_arm(server: Start) -> None:
    arm = server("dies-serving")
    url = arm.start()
    with pytest.raises(httpx.HTTPStatusError, match="500"):
        complete(url)
    with pytest.raises(EngineError, match="NCCL error"):
        watch(arm)


def test_a_flood_of_output_does_not_stop_the_server(server: Start) -> None:
    assert complete(server("talks").start()) == "4"


def test_a_server_that_ignores_being_asked_is_killed(server: Start, tmp_path: Path) -> None:
    arm = server("stubborn")
    arm.start()
    arm.stop()
    assert gone(pid_in(tmp_path / "stock.log", "pid"))


def test_a_killed_server_takes_its_workers_along(server: Start, tmp_path: Path) -> None:
    arm = server("worker")
    arm.start()
    worker = pid_in(tmp_path / "stock.log", "worker")
    os.kill(pid_in(tmp_path / "stock.log", "pid"), signal.SIGKILL)
    with pytest.raises(EngineError, match="exit status 137"):
        watch(arm)
    arm.stop()
    assert gone(worker)


def test_a_killed_parent_takes_the_server_along(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from tests.engines.test_serve import ServedArm, plan;"
        f"ServedArm(plan('fine'), Path({str(tmp_path / 'stock.log')!r})).start();"
        "print('up', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    pid = pid_in(tmp_path / "stock.log", "pid")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


def test_a_held_port_is_refused_to_others_but_not_to_the_server() -> None:
    held = hold_port()
    port = held.getsockname()[1]
    with pytest.raises(EngineError, match=f"Port {port} is not free"):
        hold_port(port)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((serve.HOST, port))
        server.listen()
    held.close()


def test_a_port_that_is_served_already_is_refused() -> None:
    with socket.create_server((serve.HOST, 0)) as other, pytest.raises(EngineError, match="not free"):
        hold_port(other.getsockname()[1])


OPTIONS = VllmEngine(model="org/model", attention_backend="FLASHMLA", block_size=64, engine_args={"swap_space": 2})


def test_vllm_is_started_with_the_specs_settings_and_the_arms_path() -> None:
    made = vllm_plan(ArmSpec.parse("patched"), OPTIONS, command="python -m server", extra=("--foo",))
    line = " ".join(made.command)
    assert line.startswith("python -m server --model org/model --served-model-name org/model --host 127.0.0.1")
    assert "--block-size 64" in line
    assert '"cudagraph_mode": "FULL_DECODE_ONLY"' in line
    assert "--no-trust-remote-code" in line
    assert "--no-enable-prefix-caching" in line
    assert line.endswith("--swap-space 2 --foo")
    assert made.variables["EVALHARNESS_CAPTURE"] == "patched"
    assert made.variables["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_the_eager_arm_is_served_without_graphs() -> None:
    options = OPTIONS.model_copy(update={"engine_args": {"compilation_config": {"custom_ops": ["none"]}}})
    made = vllm_plan(ArmSpec.parse("eager"), options, command="vllm-server")
    assert "--enforce-eager" in made.command
    assert "cudagraph" not in " ".join(made.command)
    assert '"custom_ops": ["none"]' in " ".join(made.command)


def test_a_confined_arm_is_served_confined() -> None:
    arm = ArmSpec(name="stock#c4a", capture="stock", only="tile_sched_c4a")
    assert vllm_plan(arm, OPTIONS, command="vllm-server").variables["EVALHARNESS_CAPTURE"] == "stock:tile_sched_c4a"


def test_serve_arm_prints_its_url_and_stops_when_asked(tmp_path: Path) -> None:
    fake = f"{sys.executable} -m tests.engines.fake_server fine"
    command = [sys.executable, "-m", "evalharness", "serve-arm", "stock", "canary-v3-gpu", "--command", fake]
    shell = subprocess.Popen(
        [*command, "--", "--some-flag"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert shell.stdout is not None
    lines = [shell.stdout.readline(), shell.stdout.readline()]
    assert lines[0].startswith("starting arm stock of canary-v3")
    url = lines[1].split("--arm stock=")[1].strip()
    assert complete(url) == "4"
    log = tmp_path / "serve-stock.log"
    server = pid_in(log, "pid")
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(timeout=60) == 0
    shell.stdout.close()
    assert gone(server)
    assert "--some-flag" in log.read_text()
