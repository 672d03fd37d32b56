"""Looks into an attention state: what it holds, and what a forward call changed in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Slot:
    """One attribute, dict value or list item: `owner` holds it under `key`; `mark` tells values apart."""

    owner: Any
    key: Any
    value: Any
    mark: str


def snapshot(root: object) -> dict[str, Slot]:
    """Every slot below `root` by its path, such as `layer0.decode.scheduler_metadata.num_splits`.

    An object that several layers share is visited once, under the first layer's name. Tensors are marked
    by address and shape; their contents are not read, so nothing here synchronises with the device.
    """
    return dict(_walk(root, "", 0, set()))


def changed(before: Mapping[str, Slot], after: Mapping[str, Slot]) -> tuple[str, ...]:
    """Paths whose value is another one in `after`, or which `before` does not have."""
    return tuple(path for path, slot in after.items() if path not in before or before[path].mark != slot.mark)


def describe(path: str, slot: Slot) -> str:
    """`FlashMLASchedMeta.num_splits at layer0.decode.scheduler_metadata`."""
    parent = path.removesuffix(str(slot.key)).rstrip(".") or "the state"
    return f"{type(slot.owner).__name__}.{slot.key} at {parent}"


def _walk(node: object, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Slot]]:
    if depth > MAX_DEPTH or id(node) in seen:
        return
    seen.add(id(node))
    for key, value in _items(node):
        below = f"{path}.{key}" if path else str(key)
        yield below, Slot(node, key, value, _mark(value))
        yield from _walk(value, below, depth + 1, seen)


def _items(node: object) -> list[tuple[Any, Any]]:
    if isinstance(node, dict):
        return list(node.items())
    if isinstance(node, list | tuple):
        return list(enumerate(node))
    if isinstance(node, type) or not (is_dataclass(node) or hasattr(node, "tile_scheduler_metadata")):
        return []
    return list(getattr(node, "__dict__", {}).items())


def _mark(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if hasattr(value, "data_ptr"):
        return f"tensor at {value.data_ptr():#x} {tuple(getattr(value, 'shape', ()))}"
    return f"{type(value).__name__} at {id(value):#x}"
