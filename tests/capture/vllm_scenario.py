"""Runs the capture loop of one vLLM release, read from its wheel, on a make-believe device.

    python vllm_scenario.py FOLDER        # FOLDER/vllm/... as `vllm_sources.sources` leaves it

torch and all of vLLM but the file under test are stand-ins. A "kernel" launched while a graph is open is
recorded and run at replay only. Prints one JSON object: what each path did.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

TARGET = "vllm.v1.worker.gpu.cudagraph_utils"
LAYERS = 3
SIZES = (8, 4)


# ---------------------------------------------------------------- the device
class Device:
    """`lengths` is what the planning kernel reads when it runs; `answer` what attention computed with."""

    graph: FakeGraph | None = None
    lengths = 0
    answers: ClassVar[dict[str, int]] = {}


class FakeGraph:
    def __init__(self) -> None:
        self.kernels: list[tuple[str, Callable[[], None]]] = []

    def replay(self) -> None:
        for _, kernel in self.kernels:
            kernel()


def launch(name: str, kernel: Callable[[], None]) -> None:
    if Device.graph is None:
        kernel()
    else:
        Device.graph.kernels.append((name, kernel))


@contextlib.contextmanager
def capturing(graph: FakeGraph, *_: object, **__: object) -> Iterator[None]:
    Device.graph = graph
    try:
        yield
    finally:
        Device.graph = None


@dataclass
class SchedMeta:
    have_initialized: bool = False
    tile_scheduler_metadata: Any = None
    num_splits: Any = None


@dataclass
class Metadata:
    """Two planned objects, as a model with two kinds of attention layer has them."""

    window: SchedMeta = field(default_factory=SchedMeta)
    dense: SchedMeta = field(default_factory=SchedMeta)


def attend(kind: str, sched: SchedMeta) -> None:
    """FlashMLA's contract: the first call that finds no plan launches the planning kernel."""
    if sched.tile_scheduler_metadata is None:
        plan = np.zeros(1, dtype=np.int64)
        launch("get_mla_metadata_kernel", lambda: plan.fill(Device.lengths))
        sched.have_initialized, sched.tile_scheduler_metadata, sched.num_splits = True, Plan(plan), Plan(plan)
    held = sched.tile_scheduler_metadata.values
    launch("flash_fwd", lambda: Device.answers.__setitem__(kind, int(held[0])))


class Buffer(np.ndarray):
    """The little of a tensor that the factories use beyond numpy's own."""

    def fill_(self, value: object) -> None:
        self.fill(value)


class Plan:
    """Looks like a tensor to the observer."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape

    def data_ptr(self) -> int:
        return id(self.values)


# ---------------------------------------------------------------- stand-ins for torch and vLLM
class Anything:
    """Serves as a class, an annotation, a generic and a callable."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def __init_subclass__(cls, **_: object) -> None: ...


class StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Anything,), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports TARGET from the wheel, and a StandIn for every other module of torch, vllm and tqdm."""

    def __init__(self, source: Path, given: dict[str, dict[str, object]]) -> None:
        self.source, self.given = source, given

    def find_spec(self, name: str, _: object = None, __: object = None) -> importlib.machinery.ModuleSpec | None:
        if name == TARGET:
            return importlib.util.spec_from_file_location(name, self.source)
        if name.split(".")[0] in {"torch", "vllm", "tqdm"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(self.given.get(module.__name__, {}))


FORWARD = SimpleNamespace(attn_metadata=None)


@contextlib.contextmanager
def forward_context(attn_metadata: object, *_: object, **__: object) -> Iterator[None]:
    FORWARD.attn_metadata = attn_metadata
    yield
    FORWARD.attn_metadata = None


def cudagraph_mode(folder: Path) -> type:
    """The release's own CUDAGraphMode."""
    tree = ast.parse((folder / "vllm/config/compilation.py").read_text())
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "CUDAGraphMode")
    names: dict[str, Any] = {"enum": enum, "Enum": enum.Enum}
    exec(compile(ast.Module([node], []), "compilation.py", "exec"), names)  # noqa: S102 - vLLM's own source
    mode: type = names["CUDAGraphMode"]
    return mode


def stand_ins(folder: Path) -> dict[str, dict[str, object]]:
    nothing = contextlib.nullcontext

    def inference_mode() -> Callable[[Any], Any]:
        return lambda function: function

    cuda = StandIn("torch.cuda")
    vars(cuda).update(CUDAGraph=FakeGraph, graph=capturing, is_initialized=lambda: False)
    idle = SimpleNamespace(sync_prev_onload=lambda: None, join_after_forward=lambda: None)
    first = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    batch = SimpleNamespace(seq_lens=None, num_reqs=1, num_reqs_after_padding=1)
    return {
        "torch": {"cuda": cuda, "inference_mode": inference_mode, "empty_like": np.empty_like},
        "tqdm": {"tqdm": lambda items, **_: items},
        "vllm.config.compilation": {"CUDAGraphMode": cudagraph_mode(folder)},
        "vllm.config": {"set_current_vllm_config": lambda *_: nothing()},
        "vllm.distributed.parallel_state": {
            "graph_capture": lambda **_: nothing(),
            "is_global_first_rank": lambda: False,
            "get_pp_group": lambda: first,
        },
        "vllm.model_executor.offloader.base": {"get_offloader": lambda: idle},
        "vllm.compilation.counter": {"compilation_counter": SimpleNamespace(num_cudagraph_captured=0)},
        "vllm.compilation.cudagraph_pool": {"capture_pool": lambda pool, _: nothing(pool)},
        "vllm.forward_context": {"set_forward_context": forward_context},
        "vllm.utils.torch_utils": {"current_stream": lambda: None},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.v1.worker.gpu.attn_utils": {"build_slot_mappings_by_layer": lambda *_, **__: {}},
        "vllm.v1.worker.gpu.input_batch": {"InputBatch": SimpleNamespace(make_dummy=lambda *_, **__: batch)},
    }


# ---------------------------------------------------------------- the experiment
class ModelState:
    """Builds one metadata object for all layers; keeps each, so that identities stay unique."""

    max_model_len = 128

    def __init__(self) -> None:
        self.built: list[dict[str, Metadata]] = []

    def prepare_dummy_inputs(self, *_: object, **__: object) -> dict[str, object]:
        return {}

    def prepare_attn(self, *_: object, **__: object) -> dict[str, Metadata]:
        shared = Metadata()
        self.built.append({f"layer{i}": shared for i in range(LAYERS)})
        return self.built[-1]


def manager(module: Any, mode: Any, descriptors: list[Any]) -> Any:
    """A ModelCudaGraphManager with what `capture` needs; the real constructor wants a whole vLLM config."""
    made = object.__new__(module.ModelCudaGraphManager)
    vars(made).update(
        vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=1)),
        device="cpu",
        max_num_reqs=64,
        cudagraph_mode=mode,
        decode_query_len=1,
        pool=None,
        graphs={},
        _graphs_captured=False,
        is_first_pp_rank=True,
        is_last_pp_rank=True,
        use_breakable_cg=False,
        breakable_cg_runner=None,
        ubatch_runner=None,
        _max_full_descs_to_capture=None,
        _capture_mem_samples=None,
        hidden_states=None,
        aux_hidden_states=[],
        use_aux_hidden_state_outputs=False,
        intermediate_tensors=None,
        compilation_config=SimpleNamespace(),
        _capture_descs={mode: descriptors},
        _candidates={},
        _resolve_effective_loras=lambda count: count,
    )
    if not isinstance(getattr(type(made), "dp_size", None), property):
        made.dp_size = 1
    return made


def capture_once(module: Any, mode: Any) -> tuple[Any, list[Any], ModelState, list[tuple[int, bool]]]:
    """Real ModelCudaGraphManager.capture, real factory; returns what the model's forward calls saw."""
    state, seen = ModelState(), []

    def model(**inputs: Any) -> np.ndarray:
        metadata = FORWARD.attn_metadata
        seen.append((id(metadata) if metadata else 0, Device.graph is not None))
        for layer in (metadata or {}).values():
            attend("window", layer.window)
            attend("dense", layer.dense)
        return np.zeros((len(inputs["input_ids"]), 4))

    count = (lambda n: n) if mode.name == "FULL" else (lambda _: None)
    descriptors = [module.BatchExecutionDescriptor(mode, n, count(n), count(1)) for n in SIZES]
    made = manager(module, mode, descriptors)
    buffers = SimpleNamespace(
        **{name: np.zeros(64).view(Buffer) for name in ("input_ids", "positions", "is_padding", "dcp_local_seq_lens")}
    )
    tables = SimpleNamespace(
        cp_size=1,
        cp_rank=0,
        cp_interleave=1,
        get_dummy_block_tables=lambda _: (),
        get_dummy_slot_mappings=lambda _: None,
    )
    Device.lengths = 111
    result = made.capture(model, state, buffers, None, tables, [], SimpleNamespace(num_blocks=1))
    made.returned = result
    return made, descriptors, state, seen


def replayed(made: Any, descriptor: Any, lengths: int) -> dict[str, int]:
    Device.lengths, Device.answers = lengths, {}
    made.run_fullgraph(descriptor)
    return dict(Device.answers)


def returned_state(entry: Any) -> int:
    return id(getattr(entry, "captured", entry).attn_metadata)


def one_path(module: Any, mode: Any, plugin: Any, setting: str) -> dict[str, Any]:
    plugin.CONTROL.setting = plugin.Setting.parse(setting)
    made, descriptors, state, seen = capture_once(module, mode)
    warm, captured = seen[0], seen[1]
    returned = made.returned
    return {
        "shared_object": warm[0] == captured[0],
        "calls": [flag for _, flag in seen],
        "builds": len(state.built),
        "replays": [replayed(made, d, 777 + i) for i, d in enumerate(descriptors)],
        "returned_is_captured": returned_state(returned[descriptors[0]]) == captured[0] if returned else None,
        "rows": [
            {
                "shared": row.shared,
                "changed": row.changed,
                "plan_recorded": row.plan_recorded,
                "factory_calls": row.factory_calls,
            }
            for row in plugin.CONTROL.rows["ModelCudaGraphManager"]
        ],
        "replay_count": plugin.CONTROL.steps["replay"],
    }


def recaptured(module: Any, mode: Any, plugin: Any) -> list[bool]:
    """Stock graphs, then patched ones in the same manager, then the stock ones swapped back in."""
    plugin.CONTROL.setting = plugin.Setting.parse("stock")
    made, descriptors, *_ = capture_once(module, mode)
    plugin.CONTROL.setting = plugin.Setting.parse("patched")
    stock, fresh = made.graphs, capture_once(module, mode)[0].graphs
    found = []
    for graphs, lengths in ((stock, 901), (fresh, 902), (stock, 903), (fresh, 904)):
        made.graphs = graphs
        found.append(replayed(made, descriptors[0], lengths)["dense"] == lengths)
    return found


def main(folder: Path) -> None:
    os.environ["EVALHARNESS_CAPTURE"] = "native"
    sys.meta_path.insert(0, Finder(folder / f"{TARGET.replace('.', '/')}.py", stand_ins(folder)))
    from evalharness.capture import session, vllm_plugin

    session.kernels_being_captured = lambda: tuple(name for name, _ in Device.graph.kernels) if Device.graph else None
    vllm_plugin.register()
    module = importlib.import_module(TARGET)
    module.has_compiled_submodule = lambda _: True
    full, piecewise = module.CUDAGraphMode.FULL, module.CUDAGraphMode.PIECEWISE
    settings = ("native", "stock", "patched", "stock:dense", "stock:window")
    found: dict[str, Any] = {setting: one_path(module, full, vllm_plugin, setting) for setting in settings}
    found["recaptured"] = recaptured(module, full, vllm_plugin)
    found["piecewise"] = []
    for setting in settings[:3]:
        vllm_plugin.CONTROL.setting = vllm_plugin.Setting.parse(setting)
        _, _, state, seen = capture_once(module, piecewise)
        rows = vllm_plugin.CONTROL.rows["ModelCudaGraphManager"]
        found["piecewise"].append([len(state.built), [bool(i) for i, _ in seen], len(rows)])
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
