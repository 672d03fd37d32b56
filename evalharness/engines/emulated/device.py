"""A device in miniature: memory with stable addresses, kernel launches, and graphs of recorded launches.

A kernel is a function of arrays (its operands, the last ones written in place) and scalars. As under CUDA, a launch
inside a capture is recorded and NOT executed; only a replay executes it, on the very arrays it was recorded with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evalharness.errors import EngineError

Kernel = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded launch."""

    kernel: Kernel
    operands: tuple[Any, ...]


@dataclass(slots=True)
class Graph:
    """A recorded sequence of launches; `pool_bytes` counts the memory that was allocated while it was recorded."""

    nodes: list[Node] = field(default_factory=list)
    pool_bytes: int = 0

    def replay(self) -> None:
        """Execute the recorded launches in order, on the arrays they were recorded with."""
        for node in self.nodes:
            node.kernel(*node.operands)

    def has(self, kernel: Kernel) -> bool:
        """Whether a launch of `kernel` was recorded."""
        return any(node.kernel is kernel for node in self.nodes)


class Device:
    """Allocates arrays and launches kernels on them."""

    def __init__(self) -> None:
        self._recording: Graph | None = None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An array at an address of its own, filled with zeros (pages that are never touched cost nothing)."""
        array: NDArray[Any] = np.zeros(shape, dtype)
        if self._recording is not None:
            self._recording.pool_bytes += array.nbytes
        return array

    def launch(self, kernel: Kernel, *operands: Any) -> None:
        """Run `kernel(*operands)`, or only record it while a graph is being captured."""
        if self._recording is None:
            kernel(*operands)
        else:
            self._recording.nodes.append(Node(kernel, operands))

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Record the launches of the block into a new graph. Raises EngineError inside another capture."""
        if self._recording is not None:
            raise EngineError("A graph is already being captured.", "End the first capture before the second.")
        self._recording = graph = Graph()
        try:
            yield graph
        finally:
            self._recording = None
