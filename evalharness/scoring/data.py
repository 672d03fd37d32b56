"""Where evaluation data comes from, and the proof that it is the right data.

A pinned source is read from the hub at one revision or from a folder (`--data DIR`), each file checked by SHA-256
before an engine starts. The canary tasks make their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.canary.problems import documents
from evalharness.errors import DataError

Row = dict[str, Any]
Splits = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One split of a source. `hub_path` lies in the dataset's repository, `local_path` under `--data DIR`;
    each has the SHA-256 it may have."""

    split: str
    hub_path: str
    hub_sha256: str
    local_path: str
    local_sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset on the hub, pinned to a commit."""

    dataset: str
    revision: str
    files: tuple[DataFile, ...]


SOURCES: dict[str, Source] = {
    "gsm8k": Source(
        "openai/gsm8k",
        "740312add88f781978c0658806c59bc2815b9866",
        (
            DataFile(
                "train",
                "main/train-00000-of-00001.parquet",
                "ea82612ea9582142387730c793eb67d3b12849002bc0b7fa6f8efafa7351419d",
                "gsm8k/train.jsonl",
                ("17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",),
            ),
            DataFile(
                "test",
                "main/test-00000-of-00001.parquet",
                "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59",
                "gsm8k/test.jsonl",
                ("3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",),
            ),
        ),
    ),
    "aime25": Source(
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        (
            DataFile(
                "test",
                "test.jsonl",
                "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",
                "aime25/test.jsonl",
                (
                    "2f829efbc5fa51866da2e084cc629d9dc277bd6b0c092e6d698e1a634efdfb4a",  # NeMo-Skills' copy
                    "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",  # the hub's own
                ),
            ),
        ),
    ),
}


def load_splits(source: Source, folder: Path | None) -> dict[str, list[Row]]:
    """Rows of every split, from `folder` if one is given, else from the hub or its cache.

    Raises:
        DataError: a file is missing, cannot be fetched, or has another hash.
    """
    return {file.split: _rows(_local(file, folder) if folder else _from_hub(source, file)) for file in source.files}


def canary_splits(*, task: str, documents_count: int = 1319, examples_count: int = 64, **_: Any) -> Any:
    """`custom_dataset` of the canary tasks' YAML: a DatasetDict with `documents_count` test problems, and
    `examples_count` of the training split as few-shot examples."""
    from datasets import Dataset, DatasetDict

    counts = {"train": examples_count, "test": documents_count}
    return DatasetDict({split: Dataset.from_list(documents(task, split, n)) for split, n in counts.items()})


def digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 over the rows in order, each as one line of JSON with sorted keys."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _local(file: DataFile, folder: Path) -> Path:
    path = folder / file.local_path
    if not path.is_file():
        raise DataError(
            f"Evaluation data {path} is missing.",
            f"Put {file.local_path} there (--data DIR names the folder), or leave out --data to fetch it from the hub.",
        )
    return _checked(path, file.local_sha256)


def _from_hub(source: Source, file: DataFile) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    pinned: dict[str, Any] = {
        "repo_id": source.dataset,
        "filename": file.hub_path,
        "repo_type": "dataset",
        "revision": source.revision,
    }
    found = try_to_load_from_cache(**pinned)
    if isinstance(found, str):
        return _checked(Path(found), (file.hub_sha256,))
    try:
        _ask_hub(pinned)
        return _checked(Path(hf_hub_download(**pinned)), (file.hub_sha256,))
    except DataError:
        raise
    except Exception as error:  # the hub's, the transport's and the disk's errors share no base
        raise DataError(
            f"Dataset {source.dataset} at revision {source.revision} cannot be had: {file.hub_path} is not in the "
            f"cache {HF_HUB_CACHE}, and the hub does not give it ({type(error).__name__}).",
            f"Name a folder that holds {' and '.join(f.local_path for f in source.files)} with --data DIR, "
            "or connect to the network once.",
        ) from error


def _ask_hub(pinned: Mapping[str, Any]) -> None:
    """Raise at once if the hub cannot be reached: a download would try again for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(**pinned), timeout=10)


def _checked(path: Path, known: tuple[str, ...]) -> Path:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"Evaluation data {path} cannot be read: {error}.", "Make it readable.") from error
    if found not in known:
        raise DataError(
            f"Evaluation data {path} has SHA-256 {found[:16]}..., not {' or '.join(h[:16] for h in known)}...",
            "Restore the original file; scores on other data cannot be compared.",
        )
    return path


def _rows(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_table

        rows: list[Row] = read_table(path).to_pylist()
        return rows
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]
