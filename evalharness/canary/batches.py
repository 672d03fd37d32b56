"""Training and test data as token arrays: made on the fly from the generators, in worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from evalharness.canary.problems import TASKS, contexts
from evalharness.canary.tokenizer import BOS, EOS, PAD, encode_plain

Context = Sequence[tuple[str, str]]
SHOTS = 4  # worked examples of a few-shot context: 700 tokens and more


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids [rows, length] padded on the right, and which of them belong to an answer, [rows, length] bool."""

    tokens: torch.Tensor
    answers: torch.Tensor

    def to(self, device: str) -> Batch:
        """The same batch on a device."""
        return Batch(self.tokens.to(device, non_blocking=True), self.answers.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (what DataLoader calls)."""
        return Batch(self.tokens.pin_memory(), self.answers.pin_memory())


def encode(context: Context, last_only: bool = False) -> tuple[list[int], list[bool]]:
    """Ids and answer mask of a context, with `<s>` in front and `</s>` behind the last answer.

    `last_only` leaves the answers of the worked examples out of the mask.
    """
    ids, mask = [BOS], [False]
    for place, (ask, answer) in enumerate(context):
        counts = not last_only or place == len(context) - 1
        for text, is_answer in ((ask, False), (answer, counts)):
            part = encode_plain(text)
            ids += part
            mask += [is_answer] * len(part)
    return [*ids, EOS], [*mask, True]


def collate(rows: Sequence[Context], last_only: bool = False, multiple: int = 16) -> Batch:
    """Pad to the longest row, rounded up so that few different shapes occur."""
    encoded = [encode(row, last_only) for row in rows]
    length = -(-max(len(ids) for ids, _ in encoded) // multiple) * multiple
    tokens = np.full((len(rows), length), PAD, dtype=np.int64)
    answers = np.zeros((len(rows), length), dtype=np.bool_)
    for row, (ids, mask) in enumerate(encoded):
        tokens[row, : len(ids)] = ids
        answers[row, : len(mask)] = mask
    return Batch(torch.from_numpy(tokens), torch.from_numpy(answers))


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What the training batches hold: each `fewshot_every`-th has `shots` worked examples (0: never)."""

    batch: int
    seed: int
    fewshot_every: int = 8
    shots: int = SHOTS

    def shape(self, index: int) -> tuple[int, int]:
        """(rows, shots) of the batch at that place; a few-shot batch has fewer rows, for about as many tokens."""
        if self.fewshot_every and index % self.fewshot_every == self.fewshot_every - 1:
            return max(1, self.batch // (self.shots + 1)), self.shots
        return self.batch, 0


class TrainBatches(IterableDataset[Batch]):  # type: ignore[misc, unused-ignore]  # torch may be absent
    """An endless stream of training batches, both tasks in equal parts; every worker has a seed of its own."""

    def __init__(self, plan: DataPlan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        seed = f"{self.plan.seed}/{worker.id if worker else 0}"
        streams = {
            shots: [contexts(task, "train", shots, f"{seed}/{shots}") for task in TASKS]
            for shots in {0, self.plan.shots}
        }
        index = 0
        while True:
            rows, shots = self.plan.shape(index)
            sources = streams[shots]
            yield collate([next(sources[row % len(sources)]) for row in range(rows)])
            index += 1


def train_loader(plan: DataPlan, workers: int, pin: bool) -> Iterator[Batch]:
    """Batches made by `workers` processes (0: in this one)."""
    return iter(DataLoader(TrainBatches(plan), batch_size=None, num_workers=workers, pin_memory=pin))


def heldout_batches(task: str, n: int, shots: int = 0, rows: int = 256) -> Iterator[Batch]:
    """`n` contexts of the test split, `rows` problems at a time, with only the last answer in the mask."""
    rows = max(1, rows // (shots + 1) ** 2)  # attention's memory grows with the square of a context
    stream = contexts(task, "test", shots, "evaluation")
    for start in range(0, n, rows):
        yield collate([next(stream) for _ in range(min(rows, n - start))], last_only=True)
