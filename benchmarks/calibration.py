"""False-alarm rates of the gate over 2000 simulated runs each.

Run it with `PYTHONPATH=. python benchmarks/calibration.py`.

The simulations are those that tests/test_calibration.py holds to their bounds; this prints their figures.
"""

from __future__ import annotations

import numpy as np

from evalharness.stats.clusters import PairedScores, non_inferiority
from evalharness.stats.significance import mcnemar, sign_flip
from tests.test_calibration import (
    ALPHA,
    RUNS,
    equal_arms,
    lose_anywhere,
    lose_documents,
    lose_evenly,
    verdicts,
)

DESIGNS = ((250, 1, 0.05), (1319, 1, 0.02), (30, 4, 0.10))


def main() -> None:
    """Print one line per gate."""
    rng = np.random.default_rng(0)
    flips = rng.binomial(250, 0.2, RUNS)
    losses = rng.binomial(flips, 0.5)
    found = [mcnemar(int(f - c), int(c)).p_worse <= ALPHA for f, c in zip(flips, losses, strict=True)]
    print(f"exact McNemar, equal arms, 250 documents: {np.mean(found):.4f}")
    arm, base = equal_arms(rng, (RUNS, 30, 4), noise=0.4)
    found = [sign_flip(d, 0).p_worse <= ALPHA for d in (arm - base).sum(axis=2)]
    print(f"sign flip, equal arms, 30x4: {np.mean(found):.4f}")
    for lose in (lose_anywhere, lose_documents, lose_evenly):
        for documents, repeats, margin in DESIGNS:
            starts = np.arange(0, documents * repeats, repeats)
            arms = (lose(rng, margin, (documents, repeats)) for _ in range(RUNS))
            found = [non_inferiority(PairedScores(a.ravel(), b.ravel(), starts), margin) <= ALPHA for a, b in arms]
            print(f"non-inferior at a loss of the margin, {lose.__name__}, {documents}x{repeats}: {np.mean(found):.4f}")
    for loss in (0.0, 0.05, 0.1):
        outcomes, rates = verdicts(loss, 9)
        shares = ", ".join(f"{outcome.value} {share:.4f}" for outcome, share in sorted(outcomes.items()))
        print(f"whole gate, 250 documents, true loss {loss}: {shares}")
    print(f"stated: false alarm {rates.false_alarm:.4f}, undecided {rates.withheld:.4f}, miss {rates.miss:.4f}")


if __name__ == "__main__":
    main()
