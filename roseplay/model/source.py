"""Where a model comes from: the embedded one, a bundled shape, a directory, a GGUF file, or the Hugging Face hub."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from huggingface_hub import constants
from transformers.utils import logging as transformers_logging

from roseplay.model import shapes
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.gguf_header import GgufError, is_gguf, read_header
from roseplay.model.gguf_names import first_part, model_name, one_gguf
from roseplay.own_models import (
    EMBEDDED,
    SMOLLM2,
    SMOLLM2_HUB_ID,
    SMOLLM2_NAME,
    gguf_packages_missing,
    smollm2_file,
    smollm2_is_cached,
)

T = TypeVar("T")
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")
_HUB_ID = r"[\w.-]+/[\w.-]+"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's files are."""

    name: str  # the model's name: that of its directory or file, or its hub id
    place: str  # a directory, or a hub id
    local: bool  # whether ``place`` is a directory
    # The model's GGUF file in ``place`` (the first part of a split one). With a hub id, it may also be a quantization
    # such as ``Q4_K_M``, or empty if the repository has only one file. None for a model in the format of transformers.
    gguf: str | None = None

    @property
    def file(self) -> Path | None:
        """The path of a local GGUF file; None for other models."""
        return Path(self.place, self.gguf) if self.local and self.gguf is not None else None


def find_source(model: str) -> Source:
    """Returns the source of a model that is given by its name, path or hub id. Does not use the network.

    Raises ``UnsupportedModelError`` if it is none of these.
    """
    if model == EMBEDDED:
        return Source(EMBEDDED, str(embedded_model()), True)
    if model == SMOLLM2:
        packaged = smollm2_file()
        if packaged is not None and not (gguf_packages_missing() and smollm2_is_cached()):
            return Source(SMOLLM2_NAME, str(packaged.parent), True, packaged.name)
        return Source(SMOLLM2_NAME, SMOLLM2_HUB_ID, False)
    path = Path(os.path.expanduser(model))  # os.path raises nothing: a user may be unknown, a name too long
    if not os.path.exists(path):
        path = Path(shapes.resolve(model))
    if os.path.isdir(path):
        return _in_directory(model, path)
    if os.path.isfile(path):
        if not is_gguf(path):
            why = "but not a GGUF file: give one, or the directory of a transformers model"
            raise UnsupportedModelError(f"{model} is a file, {why}", reason=f"it is a file, {why}")
        return Source(_name_of(path), str(path.parent), True, first_part(path.name))
    return _on_the_hub(model)


def _name_of(file: Path) -> str:
    """Returns a GGUF file's name, or if that is only a digest, as with Ollama's files, the name in its header."""
    if _DIGEST.fullmatch(file.name):
        with contextlib.suppress(GgufError, OSError):
            return str(read_header(file).get("general.name") or file.name)
    return model_name(file)


def _in_directory(model: str, path: Path) -> Source:
    name = path.resolve().name
    if (path / "config.json").is_file():
        return Source(name, str(path), True)
    files = [file.name for file in path.glob("*") if file.suffix.lower() == ".gguf"]
    if not files:
        why = "has no config.json: give the directory of a transformers model"
        raise UnsupportedModelError(f"{model} {why}", reason=f"it {why}")
    chosen = one_gguf(files, "", model, lambda file: str(Path(model, file)))
    return Source(model_name(chosen), str(path), True, chosen)


def _on_the_hub(model: str) -> Source:
    """Parse a hub id: ``[org/]name``, ``org/name/file.gguf``, ``org/name:file.gguf`` or ``org/name:Q4_K_M``."""
    in_gguf = re.fullmatch(rf"({_HUB_ID})(?:/(.+\.gguf)|:([\w./-]+))", model, re.IGNORECASE)
    outside = model.startswith(("/", ".", "~"))
    if in_gguf and not outside:
        place, file = in_gguf[1], in_gguf[2] or in_gguf[3]
        return Source(model, place, False, first_part(file) if file.lower().endswith(".gguf") else file)
    if outside or not re.fullmatch(rf"[\w.-]+|{_HUB_ID}", model) or model.lower().endswith(".gguf"):
        why = "there is no such directory or file"
        raise UnsupportedModelError(f"model {model!r} not found: {why}", reason=why)
    if "gguf" in model.lower().partition("/")[2]:  # the naming convention of repositories with GGUF files only
        return Source(model, model, False, "")
    return Source(model, model, False)


def embedded_model() -> Path:
    """Returns the directory of tiny-chat, in the installed package or in the repository."""
    package = Path(str(resources.files("roseplay")))
    for place in (package / "assets" / EMBEDDED, package.parent / "assets" / EMBEDDED):
        if (place / "config.json").is_file():
            return place
    raise UnsupportedModelError(f"the embedded model {EMBEDDED} is missing: reinstall roseplay, or give another model")


def cached_first(source: Source, load: Callable[[bool], T]) -> T:
    """Returns ``load(True)``, which uses local files only, or if that fails ``load(False)``, which may download.

    Raises ``UnsupportedModelError`` if a hub id is neither cached nor on the hub.
    """
    try:
        with quiet():
            return load(True)
    except OSError as error:
        if source.local:
            raise
        cause = error
    where = "not on the Hugging Face hub"
    if not hub_answers():
        where = "the Hugging Face hub cannot be reached"
    else:
        try:
            return load(False)
        except OSError as error:
            cause = error
    raise UnsupportedModelError(
        f"model {source.name!r} not found: it is not a directory, and {where}; give {EMBEDDED}, a directory, "
        "a GGUF file, or a hub id"
    ) from cause


def hub_answers() -> bool:
    """Returns whether the hub can be reached. Without a network, its client would retry noisily for half a minute."""
    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings: this package itself reports what matters to users."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
