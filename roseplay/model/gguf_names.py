"""Names of GGUF files: of the parts of a split model, of models and their quantizations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath

from roseplay.model.errors import UnsupportedModelError

_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_SHOWN = 20


def model_name(file: PurePath | str) -> str:
    """The name of a file's model: the file's, without its ending and the number of its part."""
    name = _PART.sub("", PurePath(file).name)
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def first_part(name: str) -> str:
    """The name of the first file of the split model that a file belongs to, its own where it is no part."""
    return _PART.sub(lambda found: f"-00001-of-{found[2]}", name)


def part_names(name: str) -> list[str]:
    """The names of all files of the split model that a file belongs to, its own where it is no part."""
    found = _PART.search(name)
    if found is None:
        return [name]
    return [_PART.sub(f"-{number:05d}-of-{found[2]}", name) for number in range(1, int(found[2]) + 1)]


def one_gguf(files: Iterable[str], asked: str, model: str, spelled: Callable[[str], str]) -> str:
    """Returns the file that is meant of several, the first part of a split one.

    Args:
        files: of a directory or repository.
        asked: a file's name, or a quantization; empty where there should be one file.
        spelled: how a user asks for one of them.

    Raises:
        UnsupportedModelError: none of them is meant, or more than one.
    """
    firsts = {first_part(file) for file in files if file.lower().endswith(".gguf")}
    models = sorted(file for file in firsts if not PurePath(file).name.lower().startswith("mmproj"))  # parts that see
    if asked in models:
        return asked
    found = models
    if asked:
        ending = re.compile(rf"(?:^|[-._/]){re.escape(asked)}$", re.IGNORECASE)
        found = [file for file in models if ending.search(model_name(file))]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(map(spelled, (found or models)[:_SHOWN]))
    if not models:
        raise UnsupportedModelError(f"{model} has no GGUF file")
    if not found:
        raise UnsupportedModelError(f"{model} not found: there are {shown}")
    raise UnsupportedModelError(f"{model} has {len(found)} models in GGUF: name one, such as {shown}")
