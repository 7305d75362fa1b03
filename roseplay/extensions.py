"""What extensions offer, and how the core finds them: it asks for what there is, and imports no extension by name.

Each folder of ``roseplay.extras`` with a module ``extension`` is one, and other packages add theirs by the entry point
``roseplay.extensions``, which names an ``Extension``. What an extension offers is named as ``"module:attribute"`` and
imported where it is first asked for, so that it costs nothing until then.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

GROUP = "roseplay.extensions"
BUILT_IN = "roseplay.extras"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``roseplay``: the module whose ``main(argv)`` runs it, and a line of help."""

    module: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    commands: Mapping[str, Command] = field(default_factory=dict)  # by name
    gpus: Sequence[str] = ()  # names of hardware that is not here, as which engines can run: ``EngineConfig.run_as``
    hardware: str = ""  # what runs as hardware that is not here, an ``engine.hardware.Hardware``
    # Flags of ``roseplay play`` for engines that run elsewhere, a ``play.engine_source.EngineSource``.
    engines: str = ""
    serving: str = ""  # flags of ``roseplay serve`` for other ways to serve, a ``serve.serving.Serving``
    tab: str = ""  # a tab of the page, a ``play.tab.Tab``


@cache
def extensions() -> tuple[Extension, ...]:
    """Returns all extensions that there are, the built-in ones first. One that cannot be imported is logged."""
    return (*_built_in(), *_installed())


def commands() -> dict[str, Command]:
    """Returns the commands that extensions offer, by name."""
    return {name: command for extension in extensions() for name, command in extension.commands.items()}


@cache
def offered(what: str) -> tuple[Any, ...]:
    """Returns what the extensions offer under this name of an attribute of ``Extension``, imported.

    Raises:
        ImportError: an extension needs a package that is not installed.
    """
    return tuple(_load(path) for extension in extensions() if (path := getattr(extension, what)))


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _built_in() -> list[Extension]:
    if importlib.util.find_spec(BUILT_IN) is None:
        return []
    folders = pkgutil.iter_modules(importlib.import_module(BUILT_IN).__path__, f"{BUILT_IN}.")
    return [_load(f"{name}.extension:EXTENSION") for name in sorted(folder.name for folder in folders)]


def _installed() -> list[Extension]:
    loaded = []
    for entry in entry_points(group=GROUP):
        try:
            loaded.append(entry.load())
        except Exception as error:  # of another package
            _log.warning("the extension %s (%s) cannot be loaded and is left out: %s", entry.name, entry.value, error)
    return loaded
