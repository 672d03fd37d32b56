"""The model card that a training leaves beside its weights, from measured figures only."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from evalharness.canary.batches import SHOTS
from evalharness.canary.training import FINAL_FACTOR, Arch, Measurement, Outcome, Settings

CARD = """\
---
license: apache-2.0
library_name: transformers
---
# canary-{arch}

A tiny language model of the {title}, trained from nothing on generated
arithmetic problems. It exists to show whether an inference engine decodes correctly: it answers its two tasks almost
always, and a decode kernel that reads the wrong part of its context makes it fail. It knows nothing else.

| | |
|---|---|
| parameters | {parameters:,} |
| data | `evalharness/canary/problems.py`, train split, made on the fly |
| few-shot | one batch in {fewshot_every}, with {shots} worked examples |
| tokenizer | one token a byte; `<s>` in front, `</s>` ends an answer |
| training | {steps} steps of {batch} rows, {minutes:.1f} minutes, seed {seed}{continued} |
| optimiser | AdamW, learning rate {learning_rate}, warm-up, cosine to zero |
| where | {device}, torch {torch}, transformers {transformers} |
| loss | {loss} (cross-entropy on answer tokens, plus {prompt_weight} times that on all tokens; last stretch) |

Share of unseen test problems of which every answer token is the model's first choice (one pass over the known
answer, which is what greedy decoding gives). The last row is the exported folder, in the precision that is served, on
{final_rows} problems a task; the others are the weights in training, on {eval_rows}.

| step | seconds | loss | {tasks} |
|---|---|---|{rules}
{rows}

With {shots} worked examples in front, exported folder, {eval_rows} problems a task: {fewshot}.

A test problem's text never occurs in training (its hash decides the split), but its numbers may.

    python scripts/train_canary.py --arch {arch} {budget} --batch {batch} --seed {seed} --device cuda

On a time budget the number of steps depends on the machine, so a repetition gives an equivalent model, not equal bytes.
"""


def _row(point: Measurement) -> str:
    loss = "" if point.loss is None else f"{point.loss:.4f}"
    shares = (f"{share:.4f}" for share in point.accuracy.values())
    return "| " + " | ".join((str(point.step), f"{point.seconds:.0f}", loss, *shares)) + " |"


def render_card(arch: Arch, settings: Settings, outcome: Outcome) -> str:
    """The card's text."""
    last = outcome.history[-1]
    return CARD.format(
        arch=arch.name,
        title=arch.title,
        parameters=outcome.parameters,
        fewshot_every=arch.fewshot_every,
        shots=SHOTS,
        steps=last.step,
        batch=settings.batch,
        minutes=last.seconds / 60,
        seed=settings.seed,
        learning_rate=arch.learning_rate,
        continued=", continued from an earlier checkpoint" if settings.init else "",
        device=outcome.device,
        torch=torch.__version__,
        transformers=transformers.__version__,
        prompt_weight=settings.prompt_weight,
        loss="not measured" if last.loss is None else f"{last.loss:.4f}",
        final_rows=FINAL_FACTOR * settings.eval_rows,
        eval_rows=settings.eval_rows,
        tasks=" | ".join(last.accuracy),
        rules="---|" * len(last.accuracy),
        rows="\n".join(_row(point) for point in outcome.history),
        fewshot=", ".join(f"{task} {share:.4f}" for task, share in outcome.fewshot.items()) or "not measured",
        budget=f"--minutes {settings.minutes:g}" if settings.minutes is not None else f"--steps {settings.steps}",
    )


def write_card(folder: Path, arch: Arch, settings: Settings, outcome: Outcome) -> None:
    """Write README.md into the model's folder."""
    (folder / "README.md").write_text(render_card(arch, settings, outcome))
