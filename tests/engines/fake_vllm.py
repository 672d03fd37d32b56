"""As much of vLLM as the engine touches: an LLM over one worker that has the project's extension mixed in.

Its "model" answers with the prompt. Nothing here is about FlashMLA: it only lets the engine's own code run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evalharness.capture import vllm_plugin
from evalharness.capture.worker import V2_MODULE, CaptureExtension


class Mode(Enum):
    NONE = 0
    FULL = 2


FULL, NONE = Mode.FULL, Mode.NONE
SIZES = (4, 2, 1)


@dataclass(frozen=True)
class Descriptor:
    cg_mode: Any
    num_tokens: int


@dataclass
class SchedMeta:
    tile_scheduler_metadata: Any = None


class CudaGraphManager:
    """The fixed release's loop: the factory is called again for the captured call."""

    def __init__(self) -> None:
        self.graphs: dict[Any, Any] = {}
        self._graphs_captured = False
        self.cudagraph_mode = SimpleNamespace(name="FULL_DECODE_ONLY")

    def capture(self, create_forward_fn: Callable[..., Any]) -> None:
        for size in SIZES:
            desc = Descriptor(FULL, size)
            create_forward_fn(desc, warmup=True)(NONE)
            create_forward_fn(desc, warmup=False)(NONE)
            self.graphs[desc] = object()
        self._graphs_captured = True

    def dispatch(self, num_reqs: int, num_tokens: int) -> Descriptor:
        if self._graphs_captured and num_reqs == num_tokens and num_tokens in SIZES:
            return Descriptor(FULL, num_tokens)
        return Descriptor(NONE, num_tokens)

    def run_fullgraph(self, desc: Descriptor) -> None:
        assert desc in self.graphs


class ModelCudaGraphManager(CudaGraphManager):
    pass


class Runner:
    def __init__(self, backend: str) -> None:
        self.cudagraph_manager = ModelCudaGraphManager()
        self.speculator = None
        self.model_state = SimpleNamespace()
        group = SimpleNamespace(backend=SimpleNamespace(get_name=lambda: backend))
        self.attn_groups = [[group]]
        self.captures = 0

    def capture_model(self) -> None:
        self.captures += 1

        def factory(_: Descriptor, **__: Any) -> Callable[[Any], None]:
            attn_metadata = {"layer": SchedMeta()}

            def forward(_: Any) -> None:
                attn_metadata["layer"].tile_scheduler_metadata = attn_metadata["layer"].tile_scheduler_metadata or 1

            return forward

        self.cudagraph_manager.capture(factory)


class Worker(CaptureExtension):
    rank = 0
    vllm_config = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(_commit_hash="0123abc")))

    def __init__(self, runner: Runner) -> None:
        self.model_runner = runner
        runner.capture_model()


@dataclass
class Output:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[Any]
    finished: bool = True


@dataclass
class Engine:
    """Answers two requests a step."""

    worker: Worker
    waiting: list[tuple[str, list[int], Any]] = field(default_factory=list)
    most: int = 0
    aborted: list[str] = field(default_factory=list)
    engine_core: Any = field(default_factory=lambda: SimpleNamespace(shutdown=lambda: None))

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        tokens = prompt["prompt_token_ids"]
        self.waiting.append((name, tokens, params))
        self.most = max(self.most, len(self.waiting))

    def step(self) -> Iterator[Output]:
        batch, self.waiting = self.waiting[:2], self.waiting[2:]
        manager = self.worker.model_runner.cudagraph_manager
        desc = manager.dispatch(len(batch), len(batch))
        if desc.cg_mode is FULL:
            manager.run_fullgraph(desc)
        return [self._output(*item) for item in batch]  # type: ignore[return-value]

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        self.waiting = [item for item in self.waiting if item[0] not in names]

    def _output(self, name: str, tokens: list[int], params: Any) -> Output:
        text = "".join(chr(token) for token in tokens).removeprefix("<user>").removesuffix("<think>")
        reason = "length" if len(tokens) > params.max_tokens else "stop"
        answer = SimpleNamespace(text=text, token_ids=tokens[: params.max_tokens], finish_reason=reason)
        return Output(name, tokens, [answer])


class Tokenizer:
    """A token a letter; `special` is what was said last of adding special tokens."""

    special = True

    def __call__(self, texts: list[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        Tokenizer.special = add_special_tokens
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return f"<user>{messages[0]['content']}<think>"


class LLM:
    last: LLM

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        runner = Runner(Installed.backend)
        type(runner).__module__ = Installed.runner_module
        self.worker = Worker(runner)
        self.llm_engine = Engine(self.worker)
        self.prefix_resets = 0
        LLM.last = self

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return [getattr(self.worker, method)(*args)]

    def reset_prefix_cache(self) -> bool:
        self.prefix_resets += 1
        return True

    def get_tokenizer(self) -> Any:
        return Tokenizer()


class Installed:
    """What the next LLM falls back to."""

    backend = "FLASHMLA"
    runner_module = V2_MODULE


def install(monkeypatch: pytest.MonkeyPatch, *, plugin: bool = True) -> None:
    """Put the fake into sys.modules and the plugin into a fresh state."""
    sampling = ModuleType("vllm.sampling_params")
    sampling.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    sampling.RequestOutputKind = SimpleNamespace(DELTA=1, FINAL_ONLY=2)  # type: ignore[attr-defined]
    vllm = ModuleType("vllm")
    vllm.LLM, vllm.__version__ = LLM, "0.22.1"  # type: ignore[attr-defined]
    config = ModuleType("vllm.config")
    config.set_current_vllm_config = lambda _: contextlib.nullcontext()  # type: ignore[attr-defined]
    target = ModuleType(vllm_plugin.TARGET)
    target.CudaGraphManager = CudaGraphManager  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(synchronize=lambda: None, is_initialized=lambda: False)  # type: ignore[attr-defined]
    for module in (sampling, vllm, config, target, torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("capture", "dispatch", "run_fullgraph"):
        monkeypatch.setattr(CudaGraphManager, name, CudaGraphManager.__dict__[name])
    monkeypatch.setattr(CudaGraphManager, "evalharness_steers", False, raising=False)
    monkeypatch.setattr(vllm_plugin, "CONTROL", vllm_plugin.Control())
    monkeypatch.setattr("evalharness.capture.worker.CONTROL", vllm_plugin.CONTROL)
    monkeypatch.setattr(Installed, "backend", "FLASHMLA")
    monkeypatch.setattr(Installed, "runner_module", V2_MODULE)
    if plugin:
        monkeypatch.setenv(vllm_plugin.VARIABLE, "native")
        vllm_plugin.register()
