"""The supervisor: whatever the child does, the parent gets a clear error, keeps its answers, leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evalharness.engines import process
from evalharness.engines.base import Engine, Request
from evalharness.engines.logtail import LogTail
from evalharness.engines.process import SupervisedEngine
from evalharness.errors import EngineError, EvidenceError, SpecError
from evalharness.spec import ArmSpec, load_spec
from tests.engines.tiny_model import requests as tiny_requests
from tests.engines.tiny_model import run_spec, write_model

ROOT = Path(__file__).parents[2]
SPEC = load_spec("canary-v3")
STOCK = ArmSpec.parse("stock")
Start = Callable[[str], SupervisedEngine]


def requests(count: int) -> list[Request]:
    return [Request(str(n), f"question {n}", max_tokens=8) for n in range(count)]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes supervised engines whose logs lie in tmp_path, and closes them."""
    monkeypatch.setattr(process, "STOP_S", 1.0)
    made = []

    def engine(name: str) -> SupervisedEngine:
        supervised = SupervisedEngine(
            f"tests.engines.child_engines:{name}", lambda _: {"PYTHONPATH": str(ROOT)}, start_timeout_s=20
        )
        supervised.log_to(lambda arm: tmp_path / f"{arm}.log")
        made.append(supervised)
        return supervised

    yield engine
    for supervised in made:
        supervised.close()


def gone(pid: int, within: float = 10.0) -> bool:
    """Whether process `pid` has ended (a zombie nobody collects counts as ended)."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def written(log: Path, text: str) -> str:
    """What follows `text` in the log, once it stands there: a thread of its own writes the log."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        _, found, rest = (log.read_text() if log.exists() else "").partition(text)
        if found and rest.endswith("\n"):
            return rest
        time.sleep(0.05)
    raise AssertionError(f"{text!r} was not printed")


def helper_pid(log: Path) -> int:
    return int(written(log, "helper ").split()[0])


def test_an_engine_behaves_the_same_in_a_child(start: Start, tmp_path: Path) -> None:
    engine = start("Echo")
    assert isinstance(engine, Engine)
    engine.open(SPEC)
    written(tmp_path / "engine.log", "loading for canary-v3")
    assert engine.use(STOCK).observed == {"capture_path": "stock"}
    answers = list(engine.generate(requests(3)))
    assert [(a.request_id, a.text, a.token_ids) for a in answers] == [
        (str(n), f"question {n}", (1, 2)) for n in range(3)
    ]
    assert engine.evidence().full_replays == 3
    engine.close()
    engine.close()
    assert (tmp_path / "engine.log").read_text() == "loading for canary-v3\n"
    assert (tmp_path / "stock.log").read_text().splitlines() == ["arm stock is up", "closed in order"]


def test_an_engine_can_be_opened_again(start: Start) -> None:
    engine = start("Echo")
    for _ in range(2):
        engine.open(SPEC)
        engine.use(STOCK)
        assert len(list(engine.generate(requests(1)))) == 1


def test_out_of_memory_while_loading_is_told_within_seconds(start: Start) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        start("DiesLoading").open(SPEC)
    assert time.monotonic() - began < 15
    assert "CUDA out of memory" in caught.value.message
    assert "engine.log" in caught.value.message
    assert "gpu_memory_utilization" in caught.value.remedy


def test_a_start_that_ends_early_quotes_its_cause(start: Start) -> None:
    with pytest.raises(EngineError, match=r"exit status 3.*ValueError: head size 7 is odd"):
        start("EndsLoading").open(SPEC)


def test_a_refused_backend_names_the_setting(start: Start) -> None:
    with pytest.raises(EngineError, match=r"FLASH_ATTN is not valid.*MLA not supported") as caught:
        start("RefusesBackend").open(SPEC)
    assert "engine.attention_backend" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "kind", "remedy"), [("RefusesSpec", SpecError, "4096"), ("FallsBack", EvidenceError, "V2_MODEL_RUNNER")]
)
def test_the_child_s_own_errors_arrive_as_they_are(start: Start, name: str, kind: type[Exception], remedy: str) -> None:
    engine = start(name)
    with pytest.raises(kind) as caught:  # noqa: PT012 - one of the two refuses
        engine.open(SPEC)
        engine.use(STOCK)
    assert remedy in str(caught.value)


def test_answers_before_a_kill_are_kept(start: Start) -> None:
    engine = start("DiesAnswering")
    engine.open(SPEC)
    engine.use(STOCK)
    answers = engine.generate(requests(5))
    assert [next(answers).request_id for _ in range(2)] == ["0", "1"]
    with pytest.raises(EngineError, match="SIGKILL") as caught:
        next(answers)
    assert "--resume" in caught.value.remedy


def test_an_exception_while_answering_names_the_remedy(start: Start) -> None:
    engine = start("Buggy")
    engine.open(SPEC)
    engine.use(STOCK)
    answers = engine.generate(requests(3))
    assert next(answers).request_id == "0"
    with pytest.raises(EngineError, match="illegal memory access") as caught:
        next(answers)
    assert "--resume" in caught.value.remedy


def test_a_child_that_does_not_answer_is_given_up(start: Start) -> None:
    engine = start("Hangs")
    engine.open(SPEC)
    engine._start_timeout_s = 0.5
    with pytest.raises(EngineError, match="did not answer") as caught:
        engine.use(STOCK)
    assert "start_timeout_s" in caught.value.remedy


def test_stopping_early_stops_the_child_s_work(start: Start) -> None:
    engine = start("Patient")
    engine.open(SPEC)
    engine.use(STOCK)
    for _ in engine.generate(requests(1000)):
        break
    assert engine.evidence().full_replays < 200
    assert len(list(engine.generate(requests(2)))) == 2


def test_an_engine_that_hangs_while_answering_is_given_up(start: Start, tmp_path: Path) -> None:
    engine = start("Stalls")
    engine.open(load_spec("canary-v3-gpu", ("engine.stall_timeout_s=0.5",)))
    engine.use(STOCK)
    answers = engine.generate(requests(3))
    assert next(answers).request_id == "0"
    with pytest.raises(EngineError, match="did not answer within") as caught:
        next(answers)
    assert "--resume" in caught.value.remedy
    assert "engine.stall_timeout_s" in caught.value.remedy
    assert "child_engines.py" in written(tmp_path / "stock.log", "arm stock is up")  # where it hangs


def test_an_engine_that_hangs_is_not_waited_for_by_whoever_interrupts(start: Start) -> None:
    engine = start("Stalls")
    engine.open(SPEC)
    engine.use(STOCK)
    answers = engine.generate(requests(3))
    assert next(answers).request_id == "0"
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(answers)
    engine.close()
    assert time.monotonic() - began < 30


def test_a_log_that_cannot_be_written_does_not_stop_the_engine(start: Start) -> None:
    engine = start("Patient")
    engine.log_to(lambda _: Path("/dev/full"))
    engine.open(SPEC)
    engine.use(STOCK)
    assert len(list(engine.generate(requests(5)))) == 5


def test_an_engine_that_works_long_on_an_answer_is_not_given_up(start: Start) -> None:
    engine = start("Ticking")
    engine.open(load_spec("canary-v3-gpu", ("engine.stall_timeout_s=2",)))
    engine.use(STOCK)
    assert len(list(engine.generate(requests(3)))) == 3


def test_stopping_early_does_not_wait_for_the_next_answer(start: Start) -> None:
    engine = start("Endless")
    engine.open(SPEC)
    engine.use(STOCK)
    began = time.monotonic()
    for _ in engine.generate(requests(2)):
        break
    assert engine.evidence().arm == "stock"
    assert time.monotonic() - began < 5


def test_a_child_that_is_busy_is_not_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_S", 20.0)
    engine = start("Hangs")
    engine.open(SPEC)
    engine._running().send("use", STOCK)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 8


def test_every_line_goes_to_the_log_of_its_arm(start: Start, tmp_path: Path) -> None:
    engine = start("Chatty")
    engine.open(SPEC)
    for _ in range(5):
        for arm in ("stock", "patched"):
            engine.use(ArmSpec.parse(arm))
    engine.close()
    for arm in ("stock", "patched"):
        lines = (tmp_path / f"{arm}.log").read_text().splitlines()
        assert {line.rpartition(" of ")[2] for line in lines} == {arm}
        assert len(lines) == 5 * 1001


def test_an_error_names_the_log_it_is_in(start: Start, tmp_path: Path) -> None:
    engine = start("DiesAnswering")
    engine.open(SPEC)
    engine.use(STOCK)
    with pytest.raises(EngineError) as caught:
        list(engine.generate(requests(5)))
    assert str(tmp_path / "stock.log") in caught.value.message
    assert "it last printed 'arm stock is up'" in caught.value.message
    assert "dmesg" in caught.value.remedy


def test_an_engine_that_waits_for_a_killed_process_is_ended(start: Start) -> None:
    engine = start("WaitsForItsCore")
    engine.open(SPEC)
    engine.use(STOCK)
    answers = engine.generate(requests(5))
    kept = [next(answers) for _ in range(3)]
    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        next(answers)
    assert time.monotonic() - began < 10
    assert len(kept) == 3
    assert re.search(r"lost its process EngineCore_DP0 \(pid \d+\), killed by SIGKILL", caught.value.message)
    assert "--resume" in caught.value.remedy
    assert "dmesg" in caught.value.remedy


def test_a_process_that_the_engine_ends_itself_is_not_lost(start: Start, tmp_path: Path) -> None:
    engine = start("WaitsForItsCore")
    engine.open(SPEC)
    engine.close()
    printed = (tmp_path / "engine.log").read_text()
    assert "closed in order" in printed
    assert "lost its process" not in printed


def test_a_progress_bar_is_quoted_as_a_terminal_shows_it(tmp_path: Path) -> None:
    (tmp_path / "printed").write_bytes(b"Capturing:   0%| | 0/64\rCapturing:  19%| | 12/64\n")
    log = LogTail((tmp_path / "printed").open("rb"))
    log.join(5)
    assert log.cause() == "it last printed 'Capturing:  19%| | 12/64'"


def test_a_kernel_the_autotuner_leaves_is_no_fault(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FATAL_GRACE_S", 0.1)
    engine = start("Autotunes")
    engine.open(SPEC)
    assert engine.use(STOCK).arm == "stock"


def test_close_ends_the_whole_process_group(start: Start, tmp_path: Path) -> None:
    engine = start("Patient")
    engine.open(SPEC)
    pid = helper_pid(tmp_path / "engine.log")
    engine.close()
    assert gone(pid, within=1)


def test_nothing_survives_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from evalharness.engines.process import SupervisedEngine;"
        "from evalharness.spec import load_spec;"
        "engine = SupervisedEngine('tests.engines.child_engines:Patient');"
        f"engine.log_to(lambda arm: Path({str(tmp_path)!r}) / f'{{arm}}.log');"
        "engine.open(load_spec('canary-v3')); print('open', flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "open\n"
        pid = helper_pid(tmp_path / "engine.log")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(pid)


def test_a_closed_engine_says_so(start: Start) -> None:
    with pytest.raises(EngineError, match="not open"):
        start("Echo").use(STOCK)


def test_what_the_environment_refuses_never_starts(tmp_path: Path) -> None:
    def refuse(_: object) -> dict[str, str]:
        raise EngineError("No GPU is visible.", "Run on a Hopper host.")

    engine = SupervisedEngine("tests.engines.child_engines:Echo", refuse)
    engine.log_to(lambda arm: tmp_path / f"{arm}.log")
    with pytest.raises(EngineError, match="No GPU"):
        engine.open(SPEC)
    assert not list(tmp_path.iterdir())


def test_close_waits_for_what_the_child_held(tmp_path: Path) -> None:
    waited = []
    engine = SupervisedEngine(
        "tests.engines.child_engines:Echo", lambda _: {"PYTHONPATH": str(ROOT)}, after_stop=lambda: waited.append(True)
    )
    engine.log_to(lambda arm: tmp_path / f"{arm}.log")
    engine.open(SPEC)
    engine.close()
    assert waited == [True]


def test_the_emulated_engine_killed_while_answering_keeps_its_answers(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    engine = SupervisedEngine("evalharness.engines.emulated:create")
    engine.log_to(lambda arm: tmp_path / f"{arm}.log")
    try:
        engine.open(run_spec(model))
        engine.use(STOCK)
        answers = engine.generate(tiny_requests([70] * 64, max_tokens=200, temperature=0.5))
        kept = [next(answers)]
        assert engine._process is not None
        os.kill(engine._process._child.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="killed by SIGKILL") as caught:
            kept.extend(answers)
        assert len(kept) < 64
        assert all(answer.finish_reason != "error" for answer in kept)
        assert "--resume" in caught.value.remedy
        engine.open(run_spec(model))
        assert engine.use(STOCK).descriptors
    finally:
        engine.close()
