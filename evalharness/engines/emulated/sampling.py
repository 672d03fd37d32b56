"""Choosing the next token; the random number is a function of (seed, position) and of nothing else."""

from __future__ import annotations

import hashlib

import numpy as np

from evalharness.engines.emulated.kernels import Floats


def choose(logits: Floats, temperature: float, top_p: float, seed: int, position: int) -> int:
    """The next token from logits[vocabulary]: the best at temperature 0, else a draw from the smallest set of most
    likely tokens whose share reaches `top_p` (nucleus sampling, Holtzman et al. 2020).

    `position` is the place in the context that the token will take.
    """
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    shares = np.exp(scaled - scaled.max())
    order = np.argsort(-shares, kind="stable")
    cumulated = np.cumsum(shares[order])
    kept = int(np.searchsorted(cumulated, top_p * cumulated[-1])) + 1
    cumulated = cumulated[:kept]
    drawn = int(np.searchsorted(cumulated, uniform(seed, position) * cumulated[-1], side="right"))
    return int(order[min(drawn, len(cumulated) - 1)])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position); a hash, so that no library's generator can change it."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53
