"""Holds all memory of the first GPU but four GiB until standard input ends; needs the driver's own library only."""

import ctypes
import sys
from collections.abc import Callable
from ctypes import byref

LEFT_BYTES = 4 << 30


def main() -> None:
    """Take the memory and say `holding`, or which call of the driver failed."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, held = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    calls: tuple[Callable[[], int], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(byref(device), 0),
        lambda: cuda.cuDevicePrimaryCtxRetain(byref(context), device),
        lambda: cuda.cuCtxSetCurrent(context),
        lambda: cuda.cuMemGetInfo_v2(byref(free), byref(total)),
        lambda: cuda.cuMemAlloc_v2(byref(held), ctypes.c_size_t(free.value - LEFT_BYTES)),
    )
    for call in calls:
        if status := call():
            raise SystemExit(f"CUDA error {status}")
    print("holding", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
