"""Where the canary checkpoints lie in the package, and what marks a checkpoint."""

from __future__ import annotations

from pathlib import Path

from evalharness.provenance import sha256_file, sha256_text

HASHED_BYTES = 4 << 30
# Model name in a spec -> folder beside this file; each holds config.json, tokenizer.json and safetensors.
CANARIES: dict[str, str] = {"canary-v3": "v3", "canary-v4": "v4"}


def local_model(name: str) -> Path | None:
    """The folder of a canary or of a local checkpoint; None for a name that only a hub knows."""
    if name in CANARIES:
        return Path(__file__).parent / CANARIES[name]
    try:
        path = Path(name).expanduser()
        return path if name and path.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long, of an unknown user, or with a null character
        return None


def model_hash(model: str) -> str | None:
    """Hash of a local model's config, tokenizer and weights; of weights over 4 GiB, of their names and sizes."""
    folder = local_model(model)
    if folder is None:
        return None
    files = sorted(p for p in folder.iterdir() if p.suffix in {".json", ".safetensors"})
    small = sum(p.stat().st_size for p in files) <= HASHED_BYTES
    marks = (sha256_file(p) if small or p.suffix == ".json" else str(p.stat().st_size) for p in files)
    return sha256_text(*(text for p, mark in zip(files, marks, strict=True) for text in (p.name, mark)))
