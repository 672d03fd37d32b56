"""Samples as columns: nothing is lost, and order does not matter."""

import numpy as np
import pytest

from evalharness import table as table_module
from evalharness.errors import RecordError
from evalharness.records import Cause
from evalharness.stats.divergence import SAME, first_divergence
from evalharness.table import SampleTable, digest
from tests.factories import make_sample


def test_columns_hold_what_the_samples_said() -> None:
    samples = [
        make_sample(doc_id=1, doc_hash="é", finish_reason="length", cause=Cause.LOOP, scores={"exact_match": 0.0}),
        make_sample(doc_id=0, token_ids=(), flags=("alphabet_drift",), scores={"exact_match": 1.0, "robust": 0.5}),
    ]
    table = SampleTable.from_samples(samples)
    assert table.doc_id.tolist() == [0, 1]
    assert table.doc_hash[1].decode() == "é"
    assert table.capped.tolist() == [False, True]
    assert table.degenerate.tolist() == [True, True]
    assert table.tokens.length.tolist() == [0, 3]
    assert np.isnan(table.scores["robust"]).tolist() == [False, True]


def test_no_samples_make_an_empty_table() -> None:
    assert len(SampleTable.from_samples([])) == 0


def test_documents_are_told_apart_by_hash_and_number_and_repeats_by_number() -> None:
    rows = [(0, "a", 0), (0, "a", 1), (0, "b", 0), (1, "a", 0)]
    table = SampleTable.from_samples([make_sample(doc_id=d, doc_hash=h, repeat=r) for d, h, r in rows])
    assert len(set(table.question.tolist())) == 4
    assert len(table.starts) == 3


def test_digests_are_the_same_everywhere_and_differ() -> None:
    words = np.array([f"document {i}".encode() for i in range(10_000)])
    assert len(set(digest(words).tolist())) == 10_000
    assert (digest(words.astype("S64")) == digest(words)).all()
    assert digest(np.array([b"abc"])).tolist() == [digest(np.array([b"abc", b"longer than that"]))[0]]


def test_samples_in_many_batches_make_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [
        make_sample(
            doc_id=i, doc_hash=f"{i}" * (1 + i % 3), token_ids=(i,) * i, scores={"exact_match": 1.0, f"m{i}": i}
        )
        for i in range(7)
    ]
    whole = SampleTable.from_samples(samples)
    monkeypatch.setattr(table_module, "BATCH", 3)
    parts = SampleTable.from_samples(iter(samples))
    assert (parts.question == whole.question).all()
    assert (first_divergence(parts.tokens, whole.tokens) == SAME).all()
    assert {name: column[~np.isnan(column)].tolist() for name, column in parts.scores.items()} == {
        name: column[~np.isnan(column)].tolist() for name, column in whole.scores.items()
    }


@pytest.mark.parametrize("changes", [{"token_ids": (2**31,)}, {"doc_id": 2**64}, {"output_tokens": 10**30}])
def test_a_number_beyond_any_count_is_refused_in_words(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError, match="impossible number"):
        SampleTable.from_samples([make_sample(**changes)])
