"""False alarms in a night of 2,000 runs x 10 tasks by ways to decide, and the losses that each still finds.

python -m benchmarks.false_alarms [nights]

Every cell is 250 documents, paired; noise alone flips a share of them either way. One build of the hundred loses
accuracy on one task in all of its twenty models. A cell fails as in the gate: found worse, and not shown inside the
margin of the default policy. What differs is how the p value is adjusted, and over what. "Twice" is a cell that failed
and fails again when it is asked again, the noise being fresh.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evalharness.policy import load_policy
from evalharness.stats.intervals import normal_quantile, tango_statistic
from evalharness.stats.significance import mcnemar

RUNS, TASKS, DOCUMENTS = 2_000, 10, 250
BAD = 20  # runs of the bad build
POLICY = load_policy()
MARGIN = POLICY.default.margin
Cells = npt.NDArray[np.float64]  # (runs, tasks)


def alone(p: Cells) -> Cells:
    """Every cell by itself."""
    return p


def holm_by_run(p: Cells) -> Cells:
    """Holm over the tasks of each run: what the gate does."""
    order = np.argsort(p, axis=1)
    scaled = np.take_along_axis(p, order, axis=1) * np.arange(p.shape[1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(scaled, axis=1), axis=1)
    return adjusted


def holm_by_night(p: Cells) -> Cells:
    """Holm over all cells of the night."""
    return holm_by_run(p.reshape(1, -1)).reshape(p.shape)


def fdr_by_night(p: Cells) -> Cells:
    """Benjamini and Hochberg (1995) over all cells of the night."""
    flat = p.ravel()
    order = np.argsort(flat)
    scaled = flat[order] * flat.size / np.arange(1, flat.size + 1)
    adjusted = np.empty_like(flat)
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return adjusted.reshape(p.shape)


WAYS: dict[str, Callable[[Cells], Cells]] = {
    "each cell alone": alone,
    "Holm over a run's tasks (the gate)": holm_by_run,
    "Benjamini-Hochberg over the night": fdr_by_night,
    "Holm over the night": holm_by_night,
}


def tables() -> tuple[Cells, npt.NDArray[np.bool_]]:
    """(gains, losses) -> p of "worse", and whether the cell is shown not worse by the margin."""
    most = DOCUMENTS // 2 + 1
    p = np.array([[mcnemar(gains, losses).p_worse for losses in range(most)] for gains in range(most)])
    gains, losses = np.indices(p.shape)
    inside = tango_statistic(gains, losses, DOCUMENTS, -MARGIN) >= normal_quantile(1 - 2 * POLICY.alpha)
    return p, inside


def main() -> None:
    """Print a Markdown table for each share of flips and true loss."""
    nights = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    p_of, inside_of = tables()
    rng = np.random.default_rng(20261201)
    print("| flips by noise | loss | way | false alarms a night | false twice | cells found | found twice |")
    print("|---|---|---|---|---|---|---|")
    for noise in (0.004, 0.04):
        for loss in (0.05, 0.10, 0.20):
            false, found = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
            for _ in range(nights):
                gains, losses = flipped(rng, noise, loss)
                p, inside = p_of[gains, losses], inside_of[gains, losses]
                for way, adjust in WAYS.items():
                    fails = (adjust(p) < POLICY.alpha) & ~inside
                    found[way] += int(fails[:BAD, 0].sum())
                    fails[:BAD, 0] = False
                    false[way] += int(fails.sum())
            for way in WAYS:
                each, share = false[way] / nights, found[way] / nights / BAD
                twice = each * each / (RUNS * TASKS)
                print(f"| {noise:.1%} | {loss:.2f} | {way} | {each:.1f} | {twice:.2f} | {share:.0%} | {share**2:.0%} |")


def flipped(rng: np.random.Generator, noise: float, loss: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Gains and losses (runs, tasks) of a night."""
    shares = np.tile([noise / 2, noise / 2, 1 - noise], (RUNS, TASKS, 1))
    shares[:BAD, 0] = [noise / 2, noise / 2 + loss, 1 - noise - loss]
    drawn = rng.multinomial(DOCUMENTS, shares)
    return drawn[..., 0], drawn[..., 1]


if __name__ == "__main__":
    main()
