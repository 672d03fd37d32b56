"""The real GSM8K and AIME files, where EVALHARNESS_DATA names a folder that holds them."""

import os
from pathlib import Path

import pytest

from evalharness.scoring.answers import extract
from evalharness.scoring.tasks import PreparedTask, prepare
from tests.scoring.fakes import completion, make_spec

FOLDER = os.environ.get("EVALHARNESS_DATA")
pytestmark = pytest.mark.skipif(not FOLDER, reason="EVALHARNESS_DATA names no folder with gsm8k/ and aime25/")


@pytest.fixture(scope="module")
def tasks() -> tuple[PreparedTask, ...]:
    return prepare(make_spec(["gsm8k", {"name": "aime25", "repeats": 4}], Path(FOLDER or "")))


def test_every_document_is_asked(tasks: tuple[PreparedTask, ...]) -> None:
    assert [len(task.items) for task in tasks] == [1319, 120]
    assert all(item.target.lstrip("-").isdigit() for task in tasks for item in task.items)


def test_document_hashes_are_those_lm_eval_publishes(tasks: tuple[PreparedTask, ...]) -> None:
    assert tasks[0].items[0].doc_hash == "986c19252f3c7f6eaeff2229e9a5777f96a85c0ceea931a92d2289084dfd518c"


def test_reference_solutions_score_one(tasks: tuple[PreparedTask, ...]) -> None:
    gsm8k = tasks[0]
    for item in gsm8k.items:
        sample = gsm8k.score(item, completion(gsm8k.prompts[item.doc_id].doc["answer"]), "eager")
        assert (sample.scores["exact_match"], sample.scores["robust"], sample.flags) == (1.0, 1.0, ())


def test_solutions_without_their_last_line_are_mostly_read_right(tasks: tuple[PreparedTask, ...]) -> None:
    docs = [tasks[0].prompts[item.doc_id].doc for item in tasks[0].items]
    read = [extract(doc["answer"].partition("####")[0]) for doc in docs]
    right = sum(value == item.target for value, item in zip(read, tasks[0].items, strict=True))
    assert right >= 0.98 * len(docs)
