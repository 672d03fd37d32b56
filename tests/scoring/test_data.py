"""Evaluation data is the data its hash names, or nothing starts."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from evalharness.errors import DataError
from evalharness.scoring.data import SOURCES, Source, canary_splits, digest, load_splits
from tests.scoring.fakes import AIME25, GSM8K, ROWS, write_data


def test_local_files_are_read_in_order(small_data: Path) -> None:
    splits = load_splits(SOURCES["gsm8k"], small_data)
    assert splits["test"] == GSM8K[:4]
    assert splits["train"] == GSM8K[4:]
    assert load_splits(SOURCES["aime25"], small_data)["test"] == AIME25


@pytest.mark.parametrize("missing", sorted(ROWS))
def test_a_missing_file_is_named_with_its_remedy(missing: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data") as caught:
        load_splits(SOURCES[missing.partition("/")[0]], tmp_path)
    assert "missing" in str(caught.value)


def test_other_data_under_the_right_name_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path)
    with pytest.raises(DataError, match="has SHA-256") as caught:
        load_splits(SOURCES["aime25"], tmp_path)
    assert "aime25/test.jsonl" in str(caught.value)
    assert "2f829efbc5fa5186" in str(caught.value)


@pytest.mark.usefixtures("small_data")
def test_one_changed_byte_is_enough(tmp_path: Path) -> None:
    copy = write_data(tmp_path)
    load_splits(SOURCES["gsm8k"], copy)
    path = copy / "gsm8k/test.jsonl"
    path.write_text(path.read_text().replace("eggs", "figs", 1))
    with pytest.raises(DataError, match=r"gsm8k/test\.jsonl"):
        load_splits(SOURCES["gsm8k"], copy)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_without_a_network_the_dataset_its_revision_and_the_cache_are_named(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda **_: None)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load_splits(SOURCES[name], None)
    for part in (SOURCES[name].dataset, SOURCES[name].revision, str(tmp_path), f"{name}/test.jsonl", "--data"):
        assert part in str(caught.value)


def test_a_partly_filled_cache_names_the_file_that_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(GSM8K[0]))
    known = hashlib.sha256(path.read_bytes()).hexdigest()
    train, test = SOURCES["gsm8k"].files
    source = Source("openai/gsm8k", "abc", (replace(train, hub_sha256=known), test))
    cached = {train.hub_path: str(path)}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda **asked: cached.get(asked["filename"]))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: 1 / 0)
    with pytest.raises(DataError, match=test.hub_path):
        load_splits(source, None)


def test_a_cached_file_with_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text("{}\n")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda **_: str(tmp_path / "test.jsonl"))
    with pytest.raises(DataError, match="has SHA-256"):
        load_splits(SOURCES["aime25"], None)


def test_the_digest_depends_on_rows_and_order_not_on_key_order() -> None:
    one, two = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert digest([one]) == digest([two])
    assert digest([one, {"a": "3"}]) != digest([{"a": "3"}, one])


def test_canary_splits_do_not_share_a_question() -> None:
    splits = canary_splits(task="gsm8k_canary", documents_count=200, examples_count=200, version=1.0)
    questions = {split: {row["question"] for row in rows} for split, rows in splits.items()}
    assert len(questions["test"]) == 200
    assert not questions["train"] & questions["test"]
