"""YAML that people write: a key given twice is a mistake, where the plain loader silently takes the last."""

from __future__ import annotations

from typing import Any

import yaml


def load(text: str) -> Any:
    """The one document in `text`, of plain types only; raises yaml.YAMLError, also for a key given twice."""
    return yaml.load(text, Loader=_Once)  # noqa: S506 -- _Once is a SafeLoader


class _Once(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
