"""Where a model comes from: the embedded one, a bundled shape, a directory, or the Hugging Face hub."""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TypeVar

from huggingface_hub import constants
from transformers.utils import logging as transformers_logging

from roseplay.model import shapes
from roseplay.model.errors import UnsupportedModelError

EMBEDDED = "tiny-chat"
T = TypeVar("T")


def find_source(model: str) -> tuple[str, bool]:
    """Returns the directory of a model, or its hub id unchanged; and whether it is a directory. Does not use the network.

    Raises ``UnsupportedModelError`` when the name is neither.
    """
    if model == EMBEDDED:
        return str(embedded_model()), True
    path = Path(model).expanduser()
    if not path.exists():
        path = Path(shapes.resolve(model))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UnsupportedModelError(f"{model} has no config.json: give the directory of a transformers model")
        return str(path), True
    if path.is_file():
        raise UnsupportedModelError(f"{model} is a file: give the directory of a transformers model")
    if model.startswith(("/", ".", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise UnsupportedModelError(f"model {model!r} not found: there is no such directory")
    return model, False


def embedded_model() -> Path:
    """The directory of tiny-chat, in the installed package or in the repository."""
    package = Path(str(resources.files("roseplay")))
    for place in (package / "assets" / EMBEDDED, package.parent / "assets" / EMBEDDED):
        if (place / "config.json").is_file():
            return place
    raise UnsupportedModelError(f"the embedded model {EMBEDDED} is missing: reinstall roseplay, or give another model")


def cached_first(source: str, local: bool, load: Callable[[bool], T]) -> T:
    """Returns ``load(local_files_only)``, with files on this machine or, if that fails, from the hub with progress bars.

    Raises ``UnsupportedModelError`` when a hub id is neither cached nor found.
    """
    try:
        with quiet():
            return load(True)
    except OSError as error:
        if local:
            raise
        cause = error
    where = "not on the Hugging Face hub"
    if not _hub_answers():
        where = "the Hugging Face hub cannot be reached"
    else:
        try:
            return load(False)
        except OSError as error:
            cause = error
    raise UnsupportedModelError(
        f"model {source!r} not found: it is no directory, and {where}; give {EMBEDDED}, a directory, or a hub id"
    ) from cause


def _hub_answers() -> bool:
    """Whether the hub can be reached: without a network its client retries for half a minute, printing each attempt."""
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
    """Disable transformers' progress bars and warnings: this package reports what matters to users itself."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
