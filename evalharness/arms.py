"""What an arm's name says: `patched`, `patched@8` (at most 8 requests at a time), `eager#2` (a second run of it)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,40}(@[1-9][0-9]{0,4})?(#[A-Za-z0-9_]{1,24})?$"


def base_name(name: str) -> str:
    """What stands before the suffixes; it is the capture path, where the spec does not say otherwise."""
    return first_run(name).partition("@")[0]


def first_run(name: str) -> str:
    """The arm that `name` is a further run of; `name` itself where it is none."""
    return name.partition("#")[0]


def is_further_run(name: str) -> bool:
    """Whether `name` is a further run of an arm, which measures noise or shows a detail and decides nothing."""
    return "#" in name


def at_a_time(name: str) -> int | None:
    """Most requests that the arm has under way at once; None leaves it to the engine."""
    number = first_run(name).partition("@")[2]
    return int(number) if number else None


def deciding(names: Iterable[str]) -> list[str]:
    """The arms that a verdict is about: no further run, and of an arm that also ran unlimited only that."""
    first = [name for name in names if not is_further_run(name)]
    return [name for name in first if at_a_time(name) is None or base_name(name) not in first]


def concurrencies(names: Iterable[str]) -> list[tuple[str, str]]:
    """(arm, the same arm with the fewest requests at a time) for every arm that ran with several numbers of them."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if not is_further_run(name):
            groups.setdefault(base_name(name), []).append(name)
    ordered = [sorted(group, key=lambda name: at_a_time(name) or 10**6) for group in groups.values()]
    return [(name, group[0]) for group in ordered for name in group[1:]]
