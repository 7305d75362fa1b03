"""Shapes of well-known models for measurements: configs without weights, to be run with random ones."""

from __future__ import annotations

from pathlib import Path

HUB_IDS = {
    "gpt2-124m": "openai-community/gpt2",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3.5-0.8b": "Qwen/Qwen3.5-0.8B",
    "smollm-135m": "HuggingFaceTB/SmolLM-135M-Instruct",
}
_DIRECTORY = Path(__file__).resolve().parent


def names() -> list[str]:
    """Returns the names of the bundled shapes, such as ``gpt2-124m``."""
    return sorted(config.parent.name for config in _DIRECTORY.glob("*/config.json"))


def resolve(model: str) -> str:
    """Returns the directory of the shape with this name; returns any other name unchanged."""
    return str(_DIRECTORY / model) if model in names() else model
