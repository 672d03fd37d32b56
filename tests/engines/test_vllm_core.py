"""The vllm engine's own code over a stand-in for vLLM: arms, evidence, refusals, completions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalharness.capture import vllm_plugin
from evalharness.engines.base import Engine, Request
from evalharness.engines.vllm_core import VllmCore
from evalharness.errors import EngineError, EvidenceError
from evalharness.runner.proof import continued
from evalharness.spec import ArmSpec, RunSpec, parse_spec
from tests.engines import fake_vllm

ARMS = {name: ArmSpec.parse(name) for name in ("eager", "stock", "patched", "native", "stock#2")}


def spec(**engine: object) -> RunSpec:
    options = {
        "kind": "vllm",
        "model": "some/model",
        "attention_backend": "FLASHMLA",
        "max_num_seqs": 4,
        "max_model_len": 200,
        **engine,
    }
    return parse_spec({"name": "t", "engine": options, "arms": ["eager"], "tasks": ["gsm8k"]})


def opened(monkeypatch: pytest.MonkeyPatch, **engine: object) -> VllmCore:
    fake_vllm.install(monkeypatch)
    core = VllmCore()
    core.open(spec(**engine))
    return core


def ask(count: int, **values: object) -> list[Request]:
    return [Request(str(n), f"question {n}", max_tokens=50, **values) for n in range(count)]  # type: ignore[arg-type]


def test_it_is_an_engine() -> None:
    assert isinstance(VllmCore(), Engine)


@pytest.mark.parametrize(("arm", "path"), [("stock", "stock"), ("patched", "patched"), ("native", "patched")])
def test_each_arm_proves_its_capture_path(monkeypatch: pytest.MonkeyPatch, arm: str, path: str) -> None:
    core = opened(monkeypatch)
    evidence = core.use(ARMS[arm])
    assert evidence.observed == {
        "runner": "V2",
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "attention_backend": "FLASHMLA",
        "capture_path": path,
        "model_revision": "0123abc",
    }
    assert not evidence.mismatches
    assert [row.num_tokens for row in evidence.descriptors] == [4, 2, 1]
    assert all(row.shared is (path == "stock") for row in evidence.descriptors)
    assert evidence.descriptors[0].changed == ("SchedMeta.tile_scheduler_metadata at layer",)


def test_every_capture_announces_itself_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="vllm.evalharness"):
        opened(monkeypatch).use(ARMS["stock"])
    assert [line.rsplit(" captured ")[-1] for line in caplog.messages[1:]] == [
        "along the native path; warm-up and capture share state in 0",
        "along the stock path; warm-up and capture share state in 3",
    ]


def test_eager_takes_no_graph_and_the_next_arm_takes_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    core.use(ARMS["eager"])
    list(core.generate(ask(4)))
    eager = core.evidence()
    assert (eager.full_replays, eager.eager_steps) == (0, 2)
    assert eager.observed["cudagraph_mode"] == "NONE"
    core.use(ARMS["patched"])
    list(core.generate(ask(4)))
    patched = core.evidence()
    assert (patched.full_replays, patched.eager_steps) == (2, 0)
    assert not patched.mismatches


def test_weights_load_once_and_each_path_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    for name in ("native", "stock", "patched", "stock#2", "native"):
        assert not core.use(ARMS[name]).mismatches
    assert fake_vllm.LLM.last.worker.model_runner.captures == 3
    assert fake_vllm.LLM.last.prefix_resets == 5


def test_stock_can_be_confined_to_one_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = ArmSpec(name="stock#plan", capture="stock", only="tile_scheduler_metadata")
    evidence = opened(monkeypatch).use(arm)
    assert any("confined to tile_scheduler_metadata" in note for note in evidence.notes)


@pytest.mark.parametrize(
    ("fallback", "value", "key"),
    [
        ("backend", "FLASH_ATTN_MLA", "attention_backend"),
        ("runner_module", "vllm.v1.worker.gpu_model_runner", "runner"),
    ],
)
def test_a_silent_fallback_is_refused_by_setting(
    monkeypatch: pytest.MonkeyPatch, fallback: str, value: str, key: str
) -> None:
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(fake_vllm.Installed, fallback, value)
    core = VllmCore()
    core.open(spec())
    with pytest.raises(EvidenceError, match=key):
        core.use(ARMS["stock"])


def test_a_worker_without_the_plugin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch, plugin=False)
    core = VllmCore()
    core.open(spec())
    with pytest.raises(EvidenceError, match="plugin did not load") as caught:
        core.use(ARMS["stock"])
    assert "Install evalharness" in caught.value.remedy


def test_an_unresolvable_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch, cudagraph_mode="FULL")
    with pytest.raises(EvidenceError, match="FULL_DECODE_ONLY, not FULL"):
        core.use(ARMS["stock"])


def test_steps_without_graphs_are_seen_in_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    core.use(ARMS["stock"])
    vllm_plugin.CONTROL.steps["NONE decode"] = 7
    assert core.evidence().observed["cudagraph_mode"] == "NONE"
    list(core.generate(ask(2)))
    evidence = core.evidence()
    assert evidence.observed["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert any("7 decode steps ran without a graph" in note for note in evidence.notes)


def test_the_hub_s_commit_of_the_model_is_part_of_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    evidence = core.use(ARMS["patched"])
    assert evidence.observed["model_revision"] == "0123abc"
    other = replace(evidence, observed={**evidence.observed, "model_revision": "4567def"})
    with pytest.raises(EvidenceError, match="model_revision was 0123abc, is 4567def"):
        continued(other, evidence)


def test_completions_carry_what_the_protocol_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    core.use(ARMS["patched"])
    first, *rest = core.generate([Request("a", "hello", 50), Request("b", "hello", 3), Request("c", "x" * 200, 3)])
    assert (first.request_id, first.finish_reason, first.error) == (
        "c",
        "error",
        "The prompt takes 200 tokens of a context of 200",
    )
    assert [(c.request_id, c.text, c.finish_reason, c.prompt_tokens, c.output_tokens) for c in rest] == [
        ("a", "hello", "stop", 5, 5),
        ("b", "hello", "length", 5, 3),
    ]
    assert rest[0].token_ids == tuple(map(ord, "hello"))
    assert core.evidence().costs["output_tokens"] == 8


def test_requests_are_fed_as_others_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    core.use(ARMS["eager"])
    assert len(list(core.generate(iter(ask(40))))) == 40
    assert fake_vllm.LLM.last.llm_engine.most <= 8


def test_stopping_early_aborts_what_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    core.use(ARMS["eager"])
    answers = core.generate(ask(6))
    next(answers)
    answers.close()
    assert fake_vllm.LLM.last.llm_engine.aborted == ["1-1", "1-2", "1-3", "1-4", "1-5"]
    assert len(list(core.generate(ask(2)))) == 2


def test_a_trace_that_the_template_opens_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch, thinking=True, chat_template_kwargs={"thinking": True})
    core.use(ARMS["eager"])
    (answer,) = core.generate([Request("a", "why</think>\n\n#### 7", 99)])
    assert (answer.reasoning, answer.text) == ("why", "#### 7")
    (cut,) = core.generate([Request("b", "never ends", 4)])
    assert (cut.reasoning, cut.text, cut.finish_reason) == ("never ends", "", "length")


@pytest.mark.parametrize(("template", "special"), [(None, True), ({"thinking": True}, False)])
def test_a_template_brings_its_special_tokens_along(
    monkeypatch: pytest.MonkeyPatch, template: dict[str, bool] | None, special: bool
) -> None:
    core = opened(monkeypatch, chat_template_kwargs=template)
    core.use(ARMS["eager"])
    list(core.generate([Request("a", "why", 9)]))
    assert fake_vllm.Tokenizer.special is special


def test_before_open_it_says_so() -> None:
    with pytest.raises(EngineError, match="not open"):
        VllmCore().use(ARMS["eager"])


@pytest.mark.parametrize("arm", ["eager", "patched"])
def test_the_decode_measurement_leaves_no_trace_in_the_counts(monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    core = opened(monkeypatch)
    before = core.use(ARMS[arm])
    assert "fixed_decode_tokens_per_s" in before.costs
    assert (before.full_replays, before.eager_steps) == (0, 0)
    list(core.generate(ask(4)))
    after = core.evidence()
    assert after.full_replays + after.eager_steps == 2
    assert after.costs["output_tokens"] == sum(len(f"question {n}") for n in range(4))
    assert after.costs["fixed_decode_tokens_per_s"] == before.costs["fixed_decode_tokens_per_s"]


def test_arms_that_share_graphs_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core = opened(monkeypatch)
    first = core.use(ARMS["stock"]).costs["fixed_decode_tokens_per_s"]
    monkeypatch.setattr("evalharness.engines.vllm_core.decode_speed", lambda *_: -1.0)
    assert core.use(ARMS["stock#2"]).costs["fixed_decode_tokens_per_s"] == first
    assert core.use(ARMS["patched"]).costs["fixed_decode_tokens_per_s"] == -1.0
