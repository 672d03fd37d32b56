"""Where the canary checkpoints lie in the package."""

from __future__ import annotations

from pathlib import Path

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
