"""The kernels of a CUDA graph while it is being captured, asked of the driver.

torch throws the raw graph away once it is instantiated, so it is read while the capture is still open;
the driver permits that (CUDA driver API, cuStreamGetCaptureInfo). EVALHARNESS_GRAPH_NODES=0 leaves the driver alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

SWITCH = "EVALHARNESS_GRAPH_NODES"
PLANNERS = ("get_mla_metadata", "get_decoding_sched_meta")  # FlashMLA's planning kernel, by release
KERNEL_NODE = 0
CAPTURE_ACTIVE = 1


class _KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p),
        ("dims", c_uint * 7),
        ("kernelParams", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    )


def kernels_being_captured() -> tuple[str, ...] | None:
    """Mangled names of the kernels recorded so far on torch's current stream; None: cannot be told."""
    torch = sys.modules.get("torch")
    if torch is None or os.environ.get(SWITCH) == "0" or not torch.cuda.is_initialized():
        return None
    try:
        return _kernel_names(ctypes.CDLL("libcuda.so.1"), torch.cuda.current_stream().cuda_stream)
    except (OSError, AttributeError, _DriverError):
        return None


def plans(kernels: tuple[str, ...]) -> bool:
    """Whether FlashMLA's planning kernel is among `kernels`."""
    return any(planner in name for name in kernels for planner in PLANNERS)


class _DriverError(Exception):
    """A driver call that did not return CUDA_SUCCESS."""


def _call(function: Any, *args: object) -> None:
    status = function(*args)
    if status != 0:
        raise _DriverError(status)


def _kernel_names(cuda: Any, stream: int) -> tuple[str, ...] | None:
    graph = _capturing_graph(cuda, stream)
    if graph is None:
        return None
    count = c_size_t(0)
    _call(cuda.cuGraphGetNodes, graph, None, byref(count))
    nodes = (c_void_p * count.value)()
    _call(cuda.cuGraphGetNodes, graph, nodes, byref(count))
    return tuple(name for node in nodes[: count.value] if (name := _kernel_name(cuda, c_void_p(node))))


def _capturing_graph(cuda: Any, stream: int) -> c_void_p | None:
    # Every driver since CUDA 11.3 exports _v2, also where the headers name a later one. Its last two answers, the
    # nodes that the next one would depend on, are not asked for: where they launch programmatically, _v2 fails.
    status, ident, graph = c_int(0), c_uint64(0), c_void_p()
    _call(cuda.cuStreamGetCaptureInfo_v2, c_void_p(stream), byref(status), byref(ident), byref(graph), None, None)
    return graph if status.value == CAPTURE_ACTIVE else None


def _kernel_name(cuda: Any, node: c_void_p) -> str:
    kind = c_int(-1)
    _call(cuda.cuGraphNodeGetType, node, byref(kind))
    if kind.value != KERNEL_NODE:
        return ""
    params, name = _KernelParams(), c_char_p()
    _call(cuda.cuGraphKernelNodeGetParams_v2, node, byref(params))
    cuda.cuFuncGetName.argtypes = cuda.cuKernelGetName.argtypes = (POINTER(c_char_p), c_void_p)
    if params.func:
        _call(cuda.cuFuncGetName, byref(name), params.func)
    else:
        _call(cuda.cuKernelGetName, byref(name), params.kern)
    return (name.value or b"").decode(errors="replace")
