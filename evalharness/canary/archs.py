"""The architectures that can be trained: one line each."""

from __future__ import annotations

from evalharness.canary import arch_v3, arch_v4
from evalharness.canary.training import Arch

ARCHS: dict[str, Arch] = {
    "v3": arch_v3.ARCH,
    "v4": arch_v4.ARCH,
    "v4-window": arch_v4.WINDOW_ARCH,
}
