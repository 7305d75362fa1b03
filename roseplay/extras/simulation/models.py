"""Finds a model's ``config.json``: of a bundled shape, a directory or file, or on the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from roseplay.extras.simulation.gpus import SimulationError
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.model import shapes
from roseplay.model.checkpoint_json import read_object
from roseplay.model.errors import UnsupportedModelError


def find_shape(model: str, weights: str | None = None, kv: str | None = None) -> ModelShape:
    """Returns the shape of a model; nothing but its config is read.

    Args:
        model: a bundled shape's name (``qwen3-8b``, or an id that ends with it, ``Qwen/Qwen3-8B``), a directory, a
            ``config.json``, or a hub id.
        weights, kv: see ``ModelShape.of_config``.

    Raises:
        SimulationError: it was not found, or cannot be simulated; the message is one line.
    """
    name, file = _find(model)
    try:
        return ModelShape.of_config(read_object(file), name=name, weights=weights, kv=kv)
    except UnsupportedModelError as error:
        raise SimulationError(f"{name} cannot be simulated: {error}") from None


def hub_id(model: str) -> str:
    """Returns the Hugging Face id of a bundled shape's name; any other name, and a path, unchanged."""
    return model if os.path.exists(model) else shapes.HUB_IDS.get(model.lower().removesuffix("-instruct"), model)


def _find(model: str) -> tuple[str, Path]:
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            raise SimulationError(f"{model} has no config.json: only its config is needed to simulate a model")
        return path.resolve().name, path / "config.json"
    if os.path.isfile(path):
        if path.suffix.lower() == ".gguf":
            raise SimulationError(f"{model} is a GGUF file: give the model's config.json to simulate it")
        return (path.resolve().parent.name if path.name == "config.json" else path.stem), path
    bundled = model.rpartition("/")[2].lower().removesuffix("-instruct")
    if bundled in shapes.names():
        return bundled, Path(shapes.resolve(bundled), "config.json")
    return model, Path(_download(model))


def _download(model: str) -> Any:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return hf_hub_download(model, "config.json", etag_timeout=5)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError):
        raise SimulationError(
            f"model {model!r} not found: give a config.json or its directory, a hub id, or one of the bundled"
            f" {', '.join(shapes.names())}"
        ) from None
