"""Kernel names out of a graph under capture, against a driver that answers from a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.capture import graph_nodes

PLANNER = b"_ZN4smxx6decode23get_mla_metadata_kernelE24GetDecodeSchedMetaParams"
# node -> (CUgraphNodeType, function, kernel); type 0 is a kernel, type 1 a memory copy
NODES = {11: (0, 101, 0), 12: (1, 0, 0), 13: (0, 0, 103)}
NAMES = {101: PLANNER, 103: b"flash_fwd"}
GRAPH = 77


class Function:
    """A driver call; ctypes sets argtypes on some of them."""

    argtypes: Any = None

    def __init__(self, body: Any) -> None:
        self.body = body

    def __call__(self, *args: Any) -> int:
        status = self.body(*args)
        return int(status or 0)


def driver(status: int = 1, failing: str = "") -> SimpleNamespace:
    def capture_info(_: Any, state: Any, __: Any, graph: Any, *___: Any) -> None:
        state._obj.value, graph._obj.value = status, GRAPH

    def nodes(graph: Any, found: Any, count: Any) -> None:
        assert graph.value == GRAPH
        count._obj.value = len(NODES)
        for place, node in enumerate(NODES if found is not None else ()):
            found[place] = node

    def kind(node: Any, answer: Any) -> None:
        answer._obj.value = NODES[node.value][0]

    def params(node: Any, answer: Any) -> None:
        _, answer._obj.func, answer._obj.kern = NODES[node.value]

    def name(answer: Any, function: Any) -> None:
        answer._obj.value = NAMES[function]

    calls = {
        "cuStreamGetCaptureInfo_v2": capture_info,
        "cuGraphGetNodes": nodes,
        "cuGraphNodeGetType": kind,
        "cuGraphKernelNodeGetParams_v2": params,
        "cuFuncGetName": name,
        "cuKernelGetName": name,
    }
    if failing:
        calls[failing] = lambda *_: 1
    return SimpleNamespace(**{key: Function(body) for key, body in calls.items()})


def seen(monkeypatch: pytest.MonkeyPatch, cuda: object) -> tuple[str, ...] | None:
    stream = SimpleNamespace(cuda_stream=5)
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, current_stream=lambda: stream))
    monkeypatch.setitem(graph_nodes.sys.modules, "torch", torch)
    monkeypatch.setattr(graph_nodes.ctypes, "CDLL", lambda _: cuda)
    return graph_nodes.kernels_being_captured()


def test_kernels_are_named_and_other_nodes_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = seen(monkeypatch, driver())
    assert kernels == (PLANNER.decode(), "flash_fwd")
    assert graph_nodes.plans(kernels)
    assert not graph_nodes.plans(kernels[1:])


def test_outside_a_capture_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(monkeypatch, driver(status=0)) is None


@pytest.mark.parametrize("failing", ["cuStreamGetCaptureInfo_v2", "cuGraphGetNodes", "cuFuncGetName"])
def test_a_driver_that_refuses_is_not_an_error(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    assert seen(monkeypatch, driver(failing=failing)) is None


def test_a_driver_without_the_call_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    old = driver()
    del old.cuStreamGetCaptureInfo_v2
    assert seen(monkeypatch, old) is None


def test_without_torch_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(graph_nodes.sys.modules, "torch", raising=False)
    assert graph_nodes.kernels_being_captured() is None


def test_the_driver_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(graph_nodes.SWITCH, "0")
    assert seen(monkeypatch, driver()) is None
