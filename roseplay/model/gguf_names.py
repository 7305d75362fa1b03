"""Interprets the names of GGUF files: parts of a split model, models, quantizations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath

from roseplay.model.errors import UnsupportedModelError

MOST_PARTS = 1000
_PART = re.compile(r"-([0-9]{5})-of-([0-9]{5})(?=\.gguf$)", re.IGNORECASE)
_SHOWN = 20


def model_name(file: PurePath | str) -> str:
    """Returns the name of a file's model: the file's name without its extension and part number."""
    begin, _, end = _split(PurePath(file).name)
    name = begin + end
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def first_part(name: str) -> str:
    """Returns the name of the first part of the split model that a file belongs to; else the file's own name."""
    return part_names(name)[0]


def part_names(name: str) -> list[str]:
    """Returns the names of all parts of the split model that a file belongs to; else only the file's own name."""
    begin, count, end = _split(name)
    return [f"{begin}-{number:05d}-of-{count:05d}{end}" for number in range(1, count + 1)] or [name]


def _split(name: str) -> tuple[str, int, str]:
    """Returns what stands before a part's number, the number of parts, and the ending; no parts for any other name."""
    part = _PART.search(name)
    if part is None or not 1 <= int(part[1]) <= int(part[2]) <= MOST_PARTS:
        return name, 0, ""
    return name[: part.start()], int(part[2]), name[part.end() :]


def one_gguf(files: Iterable[str], asked: str, model: str, spelled: Callable[[str], str]) -> str:
    """Returns the one file that the user asked for; for a split model, its first part.

    Args:
        files: the files of a directory or repository.
        asked: a file's name, or a quantization; empty to expect a single model.
        spelled: returns what a user has to write to ask for a file.

    Raises:
        UnsupportedModelError: no file matches, or more than one does.
    """
    firsts = {first_part(file) for file in files if file.lower().endswith(".gguf")}
    models = sorted(file for file in firsts if not PurePath(file).name.lower().startswith("mmproj"))  # vision parts
    if asked in models:
        return asked
    matches = models
    if asked:
        ending = re.compile(rf"(?:^|[-._/]){re.escape(asked)}$", re.IGNORECASE)
        matches = [file for file in models if ending.search(model_name(file))]
    if len(matches) == 1:
        return matches[0]
    shown = ", ".join(map(spelled, (matches or models)[:_SHOWN]))
    if not models:
        raise UnsupportedModelError(f"{model} has no GGUF file", reason="it has no GGUF file")
    if not matches:
        raise UnsupportedModelError(f"{model} not found: there are {shown}")
    why = f"has {len(matches)} models in GGUF: name one"
    raise UnsupportedModelError(f"{model} {why}, such as {shown}", reason=f"it {why}")
