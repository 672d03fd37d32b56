"""Trains a canary of any architecture on a time or step budget; needs the extra `[train]`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

from evalharness.canary.batches import SHOTS, Batch, DataPlan, heldout_batches, train_loader
from evalharness.canary.problems import TASKS

FINAL_FACTOR = 4  # the last measurement takes this many times the problems of the others


@dataclass(frozen=True, slots=True)
class Arch:
    """What the trainer needs of an architecture.

    `build` makes a fresh model in float32; `export` writes the folder that engines read; `load` reads such a folder
    back as (model, in the precision that is served), for evaluation or to go on from it.
    """

    name: str
    title: str
    build: Callable[[], torch.nn.Module]
    export: Callable[[torch.nn.Module, Path], None]
    load: Callable[[Path], torch.nn.Module]
    learning_rate: float = 1.5e-3
    fewshot_every: int = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """One training: it ends after `steps` or `minutes`, whichever comes first."""

    out: Path
    device: str = "cpu"
    steps: int | None = None
    minutes: float | None = None
    batch: int = 256
    seed: int = 0
    workers: int = 0
    prompt_weight: float = 0.1
    warmup: float = 0.03
    checkpoint_seconds: float = 100.0
    eval_rows: int = 512
    init: Path | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Where a training stands: mean loss since the last one, and the share of test answers right per task."""

    step: int
    seconds: float
    loss: float | None
    accuracy: dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training measured; the last point of `history` and `fewshot` are those of the exported folder."""

    parameters: int
    device: str
    history: tuple[Measurement, ...]
    fewshot: dict[str, float]


@dataclass(slots=True)
class Progress:
    """Steps taken and seconds used, as a fraction of the budget."""

    settings: Settings
    step: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def fraction(self) -> float:
        """0 at the start, 1 when the budget is spent."""
        shares = [0.0]
        if self.settings.steps is not None:
            shares.append(self.step / self.settings.steps)
        if self.settings.minutes is not None:
            shares.append(self.seconds / (60 * self.settings.minutes))
        return min(1.0, max(shares))

    def rate(self) -> float:
        """Factor on the learning rate: linear warm-up, then half a cosine to zero."""
        fraction, warmup = self.fraction, self.settings.warmup
        if fraction < warmup:
            # The first step is already at a tenth: on a time budget the fraction then is zero.
            return max(0.1, fraction / warmup)
        return 0.5 * (1 + math.cos(math.pi * (fraction - warmup) / (1 - warmup)))


def autocast(device: str) -> torch.autocast:
    """bfloat16 matrix products on a GPU, float32 on a CPU."""
    return torch.autocast("cuda" if device.startswith("cuda") else "cpu", torch.bfloat16, device.startswith("cuda"))


def batch_logits(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Logits [rows, length - 1, vocabulary] for tokens 1 and up.

    Rows are padded on the right, so causal attention alone keeps the padding out and no mask is needed.
    """
    logits: torch.Tensor = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits
    return logits.float()


def batch_loss(logits: torch.Tensor, batch: Batch, prompt_weight: float) -> torch.Tensor:
    """Mean cross-entropy over answer tokens, plus `prompt_weight` times that over all tokens."""
    targets, answers = batch.tokens[:, 1:], batch.answers[:, 1:]
    losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    # Sums instead of losses[answers]: indexing by a mask makes the GPU wait for the host.
    return (losses * answers).sum() / answers.sum() + prompt_weight * losses.mean()


def exact_share(model: torch.nn.Module, task: str, n: int, device: str, shots: int = 0) -> float:
    """Share of test answers of which every token, `</s>` included, is the model's first choice.

    Measured in one pass over the known answer; greedy decoding gives exactly these answers.
    """
    right = 0
    for batch in heldout_batches(task, n, shots):
        moved = batch.to(device)
        with torch.no_grad(), autocast(device):
            best = batch_logits(model, moved).argmax(-1)
        wrong = (best != moved.tokens[:, 1:]) & moved.answers[:, 1:]
        right += int((~wrong.any(1)).sum())
    return right / n


def evaluate(model: torch.nn.Module, n: int, device: str, shots: int = 0) -> dict[str, float]:
    """`exact_share` of every task on `n` test problems."""
    model.eval()
    return {task: exact_share(model, task, n, device, shots) for task in TASKS}


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=parameters[0].is_cuda)


def device_name(device: str) -> str:
    """The GPU's name, or `CPU`."""
    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else "CPU"


class Trainer:
    """One training: steps until the budget is spent, with a checkpoint and a measurement now and then."""

    def __init__(self, arch: Arch, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.arch, self.settings = arch, settings
        self.model = (arch.load(settings.init).float() if settings.init else arch.build()).to(settings.device)
        self.optimizer = make_optimizer(self.model, arch.learning_rate)
        self.history: list[Measurement] = []
        self.progress = Progress(settings)
        self._losses: list[torch.Tensor] = []

    def run(self) -> Outcome:
        """Train, export and measure."""
        data = self._data()
        self.progress = Progress(self.settings)
        last = 0.0
        while self.progress.fraction < 1:
            self._step(next(data))
            if self.progress.seconds - last > self.settings.checkpoint_seconds:
                self._checkpoint()
                last = self.progress.seconds
        return self._finish()

    def _data(self) -> Iterator[Batch]:
        settings = self.settings
        plan = DataPlan(settings.batch, settings.seed, self.arch.fewshot_every)
        return train_loader(plan, settings.workers, pin=settings.device.startswith("cuda"))

    def _step(self, batch: Batch) -> None:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.arch.learning_rate * self.progress.rate()
        moved = batch.to(self.settings.device)
        with autocast(self.settings.device):
            logits = batch_logits(self.model, moved)
        loss = batch_loss(logits, moved, self.settings.prompt_weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self._losses.append(loss.detach())
        self.progress.step += 1

    def _checkpoint(self) -> None:
        self.arch.export(self.model, self.settings.out)
        self._measure(evaluate(self.model, self.settings.eval_rows, self.settings.device))

    def _finish(self) -> Outcome:
        """Export, and measure what an engine will read, not the weights in memory."""
        settings = self.settings
        self.arch.export(self.model, settings.out)
        served = self.arch.load(settings.out).to(settings.device)
        self._measure(evaluate(served, FINAL_FACTOR * settings.eval_rows, settings.device))
        fewshot = evaluate(served, settings.eval_rows, settings.device, SHOTS) if self.arch.fewshot_every else {}
        parameters = sum(p.numel() for p in self.model.parameters())
        return Outcome(parameters, device_name(settings.device), tuple(self.history), fewshot)

    def _measure(self, accuracy: dict[str, float]) -> None:
        loss = float(torch.stack(self._losses).mean()) if self._losses else None
        self._losses.clear()
        self.history.append(Measurement(self.progress.step, self.progress.seconds, loss, accuracy))
        print(json.dumps(asdict(self.history[-1])), flush=True)
