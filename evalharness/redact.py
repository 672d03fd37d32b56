"""Keeps secrets of the environment out of files, logs and messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
SHORTEST = 8  # a shorter value would blot out ordinary words
HIDDEN = "[hidden]"


def secrets(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Values of variables whose names sound secret, the longest first (one may hold another)."""
    variables = os.environ if environment is None else environment
    found = {v for name, v in variables.items() if SECRET_NAME.search(name) and len(v) >= SHORTEST}
    return tuple(sorted(found, key=len, reverse=True))


def redact(text: str, values: Iterable[str]) -> str:
    """`text` with every one of `values` blotted out."""
    for value in values:
        text = text.replace(value, HIDDEN)
    return text
