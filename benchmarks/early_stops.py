"""How many documents an arm answers before --stop-early decides it, over 200 simulated arms each.

python -m benchmarks.early_stops

Ten tasks a run, each decided at alpha over ten, as the policy quick does. Noise alone flips a share of the answers
either way; a broken arm loses most of them.
"""

from __future__ import annotations

import numpy as np

from evalharness.policy import load_policy
from evalharness.stats.sequential import p_above

RUNS, TASKS = 200, 10
POLICY = load_policy("quick")
DESIGNS = ((POLICY.default.documents, POLICY.default.margin), (1319, POLICY.task("gsm8k").margin))


def needed(rng: np.random.Generator, planned: int, margin: float, gain: float, loss: float) -> int:
    """Documents until the arm is known to lie above or below -margin; all of them where that never comes."""
    drawn = rng.choice([1.0, -1.0, 0.0], planned, p=[gain, loss, 1 - gain - loss])
    low, high = 0, planned
    if min(p_above(drawn, -margin), p_above(-drawn, margin)) > POLICY.alpha / TASKS:
        return planned
    while high - low > 1:  # the highest capital so far only grows
        middle = (low + high) // 2
        seen = drawn[:middle]
        decided = min(p_above(seen, -margin), p_above(-seen, margin)) <= POLICY.alpha / TASKS
        low, high = (low, middle) if decided else (middle, high)
    return high


def main() -> None:
    """Print a Markdown table."""
    rng = np.random.default_rng(20261201)
    print("| planned, margin | arm | documents answered, median (90 %) | share of the plan |")
    print("|---|---|---|---|")
    for planned, margin in DESIGNS:
        for words, gain, loss in (
            ("equal, no flips", 0.0, 0.0),
            ("equal, 0.4 % flips", 0.002, 0.002),
            ("equal, 4 % flips", 0.02, 0.02),
            ("broken, loses 0.8", 0.0, 0.8),
        ):
            found = [needed(rng, planned, margin, gain, loss) for _ in range(RUNS)]
            median, most = np.quantile(found, [0.5, 0.9])
            share = np.mean(found) / planned
            print(f"| {planned}, {margin} | {words} | {median:.0f} ({most:.0f}) | {share:.0%} |")


if __name__ == "__main__":
    main()
