"""Which rows of two arms answer the same question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from evalharness.errors import PairingError
from evalharness.table import IntArray, SampleTable

Rows = IntArray | slice
NAMED = 5  # unpaired questions named of each arm


def align(*tables: SampleTable) -> list[Rows]:
    """Rows of each table that all of them answer, in the same order."""
    first = tables[0].question
    if all(np.array_equal(table.question, first) for table in tables[1:]):
        return [slice(None)] * len(tables)
    common = reduce(np.intersect1d, (table.question for table in tables))
    return [np.flatnonzero(np.isin(table.question, common, assume_unique=True)) for table in tables]


def planned(tables: Sequence[SampleTable]) -> IntArray:
    """The `doc_id` of every distinct question the arms were asked, ascending: that is the planned order."""
    if not tables:
        return np.zeros(0, np.int64)
    if all(np.array_equal(table.question, tables[0].question) for table in tables[1:]):
        return tables[0].doc_id
    _, first = np.unique(np.concatenate([table.question for table in tables]), return_index=True)
    return np.sort(np.concatenate([table.doc_id for table in tables])[first])


def first_documents(doc_id: IntArray, plan: IntArray, documents: int) -> IntArray:
    """Rows of `doc_id` that belong to the first `documents` of the plan."""
    order = np.unique(plan)
    last = order[min(documents, len(order)) - 1] if documents > 0 and len(order) else -1
    return np.flatnonzero(doc_id <= last)


def refuse_other_prompts(task: str, tables: Mapping[str, SampleTable]) -> None:
    """Raise PairingError when an arm was asked a paired question in other words than the first arm."""
    if not tables:
        return
    (first, base), *others = tables.items()
    for arm, table in others:
        base_rows, rows = align(base, table)
        differs = np.flatnonzero(base.prompt[base_rows] != table.prompt[rows])
        if len(differs):
            document = int(base.doc_id[base_rows][differs[0]])
            raise PairingError(
                f"{task}: {len(differs)} prompts differ between {first} and {arm} (first: document {document}).",
                "Run every arm with one chat template, few-shot setting and endpoint; these cannot be compared.",
            )


def unpaired(
    names: tuple[str, str], one: SampleTable, two: SampleTable
) -> tuple[dict[str, int], list[tuple[str, int, int]]]:
    """Questions only one of two arms has: their number per arm, and the first few as (arm, doc_id, repeat)."""
    counts: dict[str, int] = {}
    examples: list[tuple[str, int, int]] = []
    if np.array_equal(one.question, two.question):
        return counts, examples
    for name, table, other in ((names[0], one, two), (names[1], two, one)):
        alone = np.flatnonzero(~np.isin(table.question, other.question, assume_unique=True))
        if len(alone):
            counts[name] = len(alone)
            examples += [(name, int(table.doc_id[row]), int(table.repeat[row])) for row in alone[:NAMED]]
    return counts, examples
