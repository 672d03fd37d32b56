"""What vLLM is asked for, and what is refused before it is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from evalharness.engines import vllm_preflight
from evalharness.engines.base import create_engine
from evalharness.engines.gpu import Gpu, visible_gpus, wait_until_released
from evalharness.engines.vllm_settings import engine_arguments, environment
from evalharness.errors import EngineError, SpecError
from evalharness.spec import RunSpec, VllmEngine, load_spec, parse_spec

GIB = 2**30
HOPPER = Gpu(0, "NVIDIA H200", (9, 0), 140 * GIB, 1 * GIB)


def spec(tasks: tuple[object, ...] = ("gsm8k",), **engine: object) -> RunSpec:
    options = {"kind": "vllm", "model": "some/model", **engine}
    return parse_spec({"name": "t", "engine": options, "arms": ["eager"], "tasks": list(tasks)})


def test_the_gpu_profile_asks_for_flashmla_and_full_decode_graphs() -> None:
    options = load_spec("canary-v3-gpu").engine
    assert isinstance(options, VllmEngine)
    asked = engine_arguments(options)
    assert asked["attention_config"] == {"backend": "FLASHMLA"}
    assert asked["block_size"] == 64
    assert asked["compilation_config"]["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert asked["enable_prefix_caching"] is False
    assert max(asked["compilation_config"]["cudagraph_capture_sizes"]) == asked["max_num_seqs"]
    assert Path(asked["model"]).name == "v3"


def test_what_the_spec_has_no_key_for_passes_through() -> None:
    options = spec(engine_args={"enable_prefix_caching": True, "swap_space": 4}).engine
    assert isinstance(options, VllmEngine)
    asked = engine_arguments(options)
    assert (asked["enable_prefix_caching"], asked["swap_space"]) == (True, 4)
    assert "block_size" not in asked


def test_parts_of_a_configuration_are_merged() -> None:
    options = spec(engine_args={"compilation_config": {"custom_ops": ["none"]}}).engine
    assert isinstance(options, VllmEngine)
    asked = engine_arguments(options)["compilation_config"]
    assert (asked["custom_ops"], asked["cudagraph_mode"]) == (["none"], "FULL_DECODE_ONLY")


@pytest.mark.parametrize("again", [{"max_model_len": 9}, {"compilation_config": {"cudagraph_mode": "NONE"}}])
def test_what_the_spec_has_a_key_for_does_not(again: dict[str, object]) -> None:
    options = spec(engine_args=again).engine
    assert isinstance(options, VllmEngine)
    with pytest.raises(SpecError, match="is not free"):
        engine_arguments(options)


def test_the_child_gets_the_second_runner_and_keeps_the_user_s_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("EVALHARNESS_CAPTURE", "")  # set for a server of the user's own
    monkeypatch.delenv("VLLM_DEEP_GEMM_WARMUP", raising=False)
    variables = environment()
    assert variables["EVALHARNESS_CAPTURE"] == "native"
    assert variables["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert variables["VLLM_DEEP_GEMM_WARMUP"] == "skip"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in variables


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Hopper host with vLLM 0.22.1 and a local model; returns the model's folder."""
    monkeypatch.setattr(vllm_preflight.metadata, "version", lambda _: "0.22.1")
    monkeypatch.setattr(vllm_preflight, "visible_gpus", lambda: [HOPPER])
    monkeypatch.setattr(vllm_preflight, "PATIENCE_S", 0.0)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 64)
    return tmp_path


def test_a_sound_spec_passes(capable: Path) -> None:
    vllm_preflight.check(spec(model=str(capable)))


@pytest.mark.parametrize("version", ["0.19.1", "0.34.0", "0.1.dev7+gabc"])
def test_a_release_with_an_unknown_capture_loop_is_refused(
    capable: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(vllm_preflight.metadata, "version", lambda _: version)
    with pytest.raises(EngineError, match=r"pip install 'vllm>=0\.20,<0\.34'"):
        vllm_preflight.check(spec(model=str(capable)))


def test_a_budget_over_the_context_is_refused_with_figures(capable: Path) -> None:
    wide = {"name": "aime25", "max_tokens": 32768}
    with pytest.raises(SpecError, match="max_model_len=34816") as caught:
        vllm_preflight.check(spec((wide,), model=str(capable), max_model_len=32768))
    assert "tasks.aime25.max_tokens=30720" in caught.value.remedy


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([], "0 GPUs are visible"),
        ([Gpu(0, "NVIDIA A100", (8, 0), 80 * GIB, 0)], "A100.*Hopper or Blackwell"),
        ([Gpu(0, "NVIDIA H200", (9, 0), 140 * GIB, 100 * GIB)], "40.0 of 140.0 GiB free.*nvidia-smi"),
    ],
)
def test_a_machine_that_cannot_serve_is_refused(
    capable: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], said: str
) -> None:
    monkeypatch.setattr(vllm_preflight, "visible_gpus", lambda: gpus)
    with pytest.raises(EngineError, match=said):
        vllm_preflight.check(spec(model=str(capable)))


def test_a_model_in_a_pipeline_needs_the_gpus_of_every_stage_and_fits_into_all_of_them(
    capable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = spec(model=str(capable), engine_args={"pipeline_parallel_size": 2})
    with pytest.raises(EngineError, match=r"1 GPUs are visible; .* ask for 2"):
        vllm_preflight.check(staged)
    monkeypatch.setattr(vllm_preflight, "visible_gpus", lambda: [Gpu(n, "NVIDIA H200", (9, 0), 60, 0) for n in (0, 1)])
    vllm_preflight.check(staged)


def test_a_model_that_is_not_there_is_refused(capable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EngineError, match="hf download nobody/nothing"):
        vllm_preflight.check(spec(model="nobody/nothing"))
    (capable / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"config\.json with"):
        vllm_preflight.check(spec(model=str(capable)))


def test_weights_of_which_a_part_is_missing_are_refused(capable: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (capable / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineError, match=r"all its \*\.safetensors"):
        vllm_preflight.check(spec(model=str(capable)))
    (capable / "model-00002.safetensors").write_bytes(b"x")
    vllm_preflight.check(spec(model=str(capable)))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": null}', "\xff"])
def test_an_index_of_weights_that_cannot_be_read_is_named(capable: Path, text: str) -> None:
    (capable / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(EngineError, match=r"index\.json is no index of weights") as caught:
        vllm_preflight.check(spec(model=str(capable)))
    assert "fetch the model again" in caught.value.remedy


def test_a_download_that_was_cut_short_goes_on(capable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (capable / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(capable / "config.json"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EngineError, match="not wholly, in the hub's cache"):
        vllm_preflight.check(spec(model="some/model"))


def test_weights_over_the_gpu_s_memory_are_refused(capable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_preflight, "visible_gpus", lambda: [Gpu(0, "NVIDIA H200", (9, 0), 60, 0)])
    with pytest.raises(EngineError, match="tensor_parallel_size"):
        vllm_preflight.check(spec(model=str(capable)))


def test_without_vllm_the_engine_says_how_to_get_it() -> None:
    with pytest.raises(EngineError) as caught:
        create_engine("vllm").open(spec())
    assert "pip install" in caught.value.remedy or "Hopper" in caught.value.remedy


def nvml(used: list[int]) -> ModuleType:
    """A stand-in for pynvml with one GPU whose used memory follows `used`."""
    module = ModuleType("pynvml")
    vars(module).update(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=140 * GIB, used=used.pop(0) if used[1:] else used[0]),
    )
    return module


def test_gpus_are_read_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml([GIB]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == [HOPPER]
    assert HOPPER.family == "Hopper"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a,0")
    assert len(visible_gpus()) == 2


def test_vllm_s_own_copy_of_nvml_serves_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    carried = tmp_path / "vllm" / "third_party" / "pynvml.py"
    carried.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('vLLM must not be imported')")
    carried.write_text(
        "import sys\nThis = sys.modules[__name__]\nclass NVMLError(Exception): ...\n"
        "def nvmlInit(): raise NVMLError('driver not loaded')\n"
    )
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "_pynvml", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert visible_gpus() == []
    assert sys.modules["_pynvml"].__file__ == str(carried)


def test_a_stop_waits_until_the_memory_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.engines.gpu.POLL_S", 0.01)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([90 * GIB, 50 * GIB, GIB]))
    assert wait_until_released([HOPPER], timeout_s=5) == []
    monkeypatch.setitem(sys.modules, "pynvml", nvml([90 * GIB]))
    assert [gpu.used for gpu in wait_until_released([HOPPER], timeout_s=0.05)] == [90 * GIB]
