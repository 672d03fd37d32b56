"""Train a canary model: `python scripts/train_canary.py --arch v3 --minutes 7 --device cuda --out FOLDER`.

Prints one JSON line per measurement and leaves weights, tokenizer and model card in the folder. Needs the extra
`[train]`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import transformers

from evalharness.canary.archs import ARCHS
from evalharness.canary.card import write_card
from evalharness.canary.training import Settings, Trainer


def parse_arguments() -> argparse.Namespace:
    """The command line; a budget in minutes, steps or both is needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=tuple(ARCHS), default="v3")
    parser.add_argument("--minutes", type=float, help="training time; evaluation and export come on top")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=min(6, (os.cpu_count() or 1) // 2), help="data processes")
    parser.add_argument("--checkpoint-seconds", type=float, default=100.0)
    parser.add_argument("--eval-rows", type=int, default=512)
    parser.add_argument("--init", type=Path, help="go on from an exported folder")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.minutes is None and arguments.steps is None:
        parser.error("give --minutes or --steps")
    return arguments


def main() -> None:
    """Train, export, measure, and write the card."""
    options = vars(parse_arguments())
    transformers.utils.logging.disable_progress_bar()
    arch = ARCHS[options.pop("arch")]
    settings = Settings(**options)
    outcome = Trainer(arch, settings).run()
    write_card(settings.out, arch, settings, outcome)


if __name__ == "__main__":
    main()
