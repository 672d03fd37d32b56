"""The model runner: static memory, captured graphs, and decode steps that replay them or run eagerly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalharness.capture.paths import CapturePath
from evalharness.engines.emulated.capture import Descriptor, Forward, capture_graphs
from evalharness.engines.emulated.decode import decode_step
from evalharness.engines.emulated.device import Device, Graph
from evalharness.engines.emulated.kernels import Floats, linear, padded_rows
from evalharness.engines.emulated.memory import Activations, InputBuffers, KVCache, Row, blocks_for
from evalharness.engines.emulated.weights import Model
from evalharness.records import DescriptorEvidence


class ModelRunner:
    """Runs decode steps for up to the largest of `batch_sizes` requests at a time.

    A step is padded to the smallest batch size that holds it, whether or not that size has a graph.
    """

    def __init__(self, model: Model, batch_sizes: Sequence[int], max_model_len: int) -> None:
        self.model = model
        self.device = Device()
        self.descriptors = sorted(Descriptor(size) for size in set(batch_sizes))
        self.max_batch = self.descriptors[-1].num_tokens
        max_blocks = blocks_for(max_model_len)
        self.cache = KVCache(self.device, model.config, 1 + self.max_batch * max_blocks)
        self.inputs = InputBuffers.allocate(self.device, self.max_batch, max_blocks)
        self._activations = Activations.allocate(self.device, model.config, self.max_batch, max_blocks)
        self._logits = self.device.empty((padded_rows(self.max_batch), model.config.vocab_size))
        self.drop_graphs()

    def drop_graphs(self) -> None:
        """Forget all graphs and counts: from now on every step is eager."""
        self.graphs: dict[Descriptor, Graph] = {}
        self.full_replays = self.eager_steps = 0

    def capture(self, path: CapturePath) -> tuple[DescriptorEvidence, ...]:
        """Capture every batch size anew under `path`."""
        self.drop_graphs()
        self.graphs, evidence = capture_graphs(self.device, self._dummy_forward, self.descriptors, path)
        return evidence

    def step(self, rows: Sequence[Row]) -> Floats:
        """Decode one token for each of 1..max_batch rows; returns a view of the logits [len(rows), vocabulary].

        The view is valid until the next step.
        """
        descriptor = next(d for d in self.descriptors if d.num_tokens >= len(rows))
        self.inputs.write(rows)
        graph = self.graphs.get(descriptor)
        if graph is None:
            self._forward(descriptor).run()
            self.eager_steps += 1
        else:
            graph.replay()
            self.full_replays += 1
        return self._compute_logits(descriptor)[: len(rows)]

    def _compute_logits(self, descriptor: Descriptor) -> Floats:
        """The vocabulary projection, which Model Runner V2 too keeps out of its graphs."""
        padded = padded_rows(descriptor.num_tokens)
        self.device.launch(linear, self._activations.hidden[:padded], self.model.head, self._logits[:padded])
        return self._logits

    def _dummy_forward(self, descriptor: Descriptor) -> Forward:
        self.inputs.write_dummy(descriptor.num_tokens)
        return self._forward(descriptor)

    def _forward(self, descriptor: Descriptor) -> Forward:
        state = self.inputs.attention_state(descriptor.num_tokens)
        activations = self._activations.first(padded_rows(descriptor.num_tokens))

        def run() -> None:
            decode_step(self.device, self.model, self.inputs, self.cache, state, activations)

        return Forward(run, state)

    @property
    def graph_nodes(self) -> int:
        """Launches recorded in all graphs together."""
        return sum(len(graph.nodes) for graph in self.graphs.values())

    @property
    def graph_bytes(self) -> int:
        """Memory allocated while the graphs were captured."""
        return int(np.sum([graph.pool_bytes for graph in self.graphs.values()], dtype=np.int64))
