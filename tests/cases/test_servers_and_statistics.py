"""Cases of CASES.md: servers that fail, and figures that are compared wrongly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from evalharness.assess import assess
from evalharness.engines import endpoint_pace, serve
from evalharness.engines.serve import ServedArm
from evalharness.errors import EngineError, PairingError
from evalharness.records import ArmState, Cause, Outcome
from evalharness.runner import local, session
from evalharness.spec import RunSpec, parse_spec
from tests.engines.openai_server import Reply, Script, serving
from tests.engines.test_process import gone
from tests.engines.test_serve import pid_in, plan, watch
from tests.faults.scripted import Scripted, scripted, small_spec
from tests.synthetic import answers, judge

__all__ = ["scripted"]
TASK = "gsm8k_canary"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_pace, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(serve, "STOP_S", 1.5)


def endpoint_spec(*arms: str, limit: int = 16, **engine: object) -> RunSpec:
    options = {"kind": "endpoint", "timeout_s": 0.5, "max_retries": 6, "max_concurrency": 16, **engine}
    tasks = [{"name": TASK, "limit": limit}]
    return parse_spec({"name": "t", "engine": options, "arms": list(arms), "tasks": tasks, "policy": "endpoint"})


# --- 21: evalscope 781 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.1])
def test_case_21_evalscope_781_a_server_slower_than_the_timeout_is_asked_less_and_nothing_is_lost(
    tmp_path: Path, seconds: float
) -> None:
    """Every answer takes `seconds` for each request in flight."""
    script = Script(lambda _: Reply())
    choice = {"text": "#### 1", "finish_reason": "stop"}
    script.answer = lambda _: Reply(after_s=seconds * script.flying, body={"choices": [choice]})
    with serving(script) as url:
        folder = local.start(endpoint_spec(f"eager={url}"), tmp_path)
    samples = folder.read_samples(TASK, "eager")
    assert len(samples) == 16
    assert Cause.ERROR not in {sample.cause for sample in samples}
    assert folder.read_evidence()["eager"].costs["overloads"] > 0


def test_case_21_evalscope_781_a_server_that_always_times_out_is_an_error_and_not_wrong(tmp_path: Path) -> None:
    slow = Script(lambda _: Reply(after_s=4.0, body={}))
    with serving(slow) as url:
        folder = local.start(
            endpoint_spec(f"eager={url}", f"stock={url}", limit=3, timeout_s=1.5, max_retries=1), tmp_path
        )
    samples = folder.read_samples(TASK, "eager")
    assert {(sample.cause, sample.error) for sample in samples} == {(Cause.ERROR, "no answer within 1.5 s")}
    comparison = assess(folder)
    assert comparison.verdict.outcome is Outcome.ERROR
    assert comparison.tasks[0].score("eager").value is None  # type: ignore[union-attr]


# --- 23: vllm 55510, 24: vllm 58211 -------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stock.log"


@pytest.mark.parametrize("victim", ["pid", "worker"])
def test_case_23_vllm_55510_a_killed_server_leaves_no_worker_that_holds_the_gpu(log: Path, victim: str) -> None:
    arm = ServedArm(plan("worker"), log)
    arm.start()
    server, worker = pid_in(log, "pid"), pid_in(log, "worker")
    os.kill(pid_in(log, victim), signal.SIGKILL)
    time.sleep(0.2)
    arm.stop()
    assert gone(server)
    assert gone(worker)


@pytest.mark.parametrize("behaviour", ["other-model", "hangs"])
def test_case_23_vllm_37230_a_start_that_fails_leaves_nothing(log: Path, behaviour: str) -> None:
    arm = ServedArm(plan(behaviour, timeout_s=2), log)
    with pytest.raises(EngineError):
        arm.start()
    assert gone(pid_in(log, "pid"))


@pytest.mark.parametrize(
    ("behaviour", "cause"), [("dies", "ValueError: head size 7 is odd"), ("out-of-memory", "CUDA out of memory")]
)
def test_case_24_vllm_58211_the_cause_of_a_crash_at_start_is_quoted_with_its_log(
    log: Path, behaviour: str, cause: str
) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        ServedArm(plan(behaviour), log).start()
    assert time.monotonic() - began < 20
    assert cause in caught.value.message
    assert str(log) in caught.value.message


def test_case_24_vllm_58211_a_server_that_dies_later_is_told_the_same_way(log: Path) -> None:
    arm = ServedArm(plan("fine"), log)
    arm.start()
    os.kill(pid_in(log, "pid"), signal.SIGKILL)
    with pytest.raises(EngineError, match=r"ended \(exit status 137\).*stock\.log"):
        watch(arm)
    arm.stop()


# --- 33: NVIDIA/skills 84 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["open", "use"])
def test_case_33_nvidia_skills_84_an_arm_that_never_starts_does_not_eat_the_budget(
    tmp_path: Path, scripted: type[Scripted], where: str
) -> None:
    def refuse(*_: object) -> None:
        raise EngineError("No kernel image is available.", "Choose another backend.")

    setattr(scripted, "on_open" if where == "open" else "on_use", staticmethod(refuse))
    arms = ("eager", "stock", "patched", "native")
    folder = local.start(small_spec(*arms), tmp_path)
    assert scripted.asked == []
    assert scripted.opened <= (session.IDENTICAL_STARTS if where == "open" else len(arms))
    assert {arm.state for arm in folder.read_run().arms} == {ArmState.FAILED}
    verdict = assess(folder).verdict
    assert verdict.outcome is Outcome.ERROR
    assert any("No kernel image" in reason for reason in verdict.reasons)


# --- 25: vllm 54920 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [50, 200])
def test_case_25_vllm_54920_a_threshold_for_1319_is_not_used_for_fewer(n: int) -> None:
    """Two wrong answers more of 50 would be a loss of 0.04, twice the margin, by chance alone."""
    right = np.ones(n, bool)
    fewer = right.copy()
    fewer[:2] = False
    found = judge(
        {"gsm8k": {"eager": answers("eager", right, task="gsm8k"), "native": answers("native", fewer, task="gsm8k")}}
    )
    task = found.tasks[0]
    assert found.verdict.outcome is not Outcome.FAIL
    assert task.rates is not None
    assert 0 <= task.rates.false_alarm <= 0.06
    assert any("calibrated for 1319" in note for note in (*task.notes, *found.verdict.reasons))


# --- 28: lm-eval 3831 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_case_28_lm_eval_3831_two_files_of_the_same_documents_are_tested_in_pairs(seed: int) -> None:
    """Twelve answers lost of 250 and none gained: certain in pairs, nothing to an unpaired z test."""
    rng = np.random.default_rng(seed)
    before = rng.random(250) < 0.6
    after = before.copy()
    after[rng.choice(np.flatnonzero(before), 12, replace=False)] = False
    found = judge({TASK: {"eager": answers("eager", before), "native": answers("native", after)}})
    contrast = found.tasks[0].contrast("native", "eager")
    assert contrast is not None
    assert "McNemar" in contrast.test
    assert contrast.p_worse == pytest.approx(0.5**12)
    assert contrast.p_unpaired is not None
    assert contrast.p_unpaired > 0.05


# --- 29: lm-eval 1841 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("template", ["<|user|>{}<|assistant|>", "{} "])
def test_case_29_lm_eval_1841_arms_with_other_templates_are_refused(tmp_path: Path, api: str, template: str) -> None:
    one, two = Script(lambda _: "#### 1"), Script(lambda _: "#### 1", template=template)
    with serving(one) as plain, serving(two) as wrapped:
        spec = endpoint_spec(f"eager={plain}", f"stock={wrapped}", api=api)
        with pytest.raises(PairingError, match="cannot be compared"):
            local.start(spec, tmp_path)
    assert one.questions == two.questions == []


def test_case_29_lm_eval_1841_stored_answers_to_other_prompts_are_refused() -> None:
    chat = answers("stock", np.ones(5), prompt_hash="of the chat template")
    with pytest.raises(PairingError, match="5 prompts differ between eager and stock"):
        judge({TASK: {"eager": answers("eager", np.ones(5)), "stock": chat}})
