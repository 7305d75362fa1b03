"""Lists the models that a page's visitors may load, with what is known about each, and loads one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import create_model

from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.engine.errors import EngineError
from roseplay.formats.invalid import Object, validated
from roseplay.formats.numbers import number_text, whole
from roseplay.formats.text import shown
from roseplay.models.catalog import ModelCatalog, check_download, given
from roseplay.models.entry import ModelEntry, hardware_models
from roseplay.play.engine_host import EngineHost, NotOfferedError
from roseplay.play.options import engine_settings
from roseplay.settings import settings_of

# The fields of ``EngineConfig`` that can be chosen with a model; all but the last belong to it.
_FORMATS = ("dtype", "quantization", "kv_dtype")
SETTINGS = ("run_as", *_FORMATS, "num_blocks", "kv_cache_memory", "max_model_len", "tensor_parallel_size")
# A model, and those of its settings that are not to have their defaults, as values or as text.
_FIELDS: dict[str, Any] = {"model": (str, ...), **dict.fromkeys(SETTINGS, (Any, None))}
LoadOrder = create_model("LoadOrder", __base__=Object, **_FIELDS)
_POOL = ("num_blocks", "kv_cache_memory")
MAX_NAME = 4096
_LOOK_S = 2.0  # timeout for a running engine to report its free memory


class ModelPicker:
    """Lists models and loads them.

    Args:
        host: of the engine.
        trusted: whether all clients may choose from this machine's files, because the server listens on the loopback
            address or requires a key.
        models: those that the operator offers; nothing else is listed or loaded. If empty, and visitors are
            ``trusted``, all of this machine's models and any path or hub ID that is typed.
        asked: the engine settings given on the command line.
        catalog: of this machine's models.
    """

    def __init__(
        self,
        host: EngineHost,
        *,
        trusted: bool,
        models: Sequence[str] = (),
        asked: Mapping[str, Any] | None = None,
        catalog: ModelCatalog | None = None,
    ) -> None:
        self._host, self._trusted, self._models, self._asked = host, trusted, tuple(models), dict(asked or {})
        self._catalog = catalog or ModelCatalog()

    @property
    def offers(self) -> bool:
        """Whether there is anything to choose."""
        return self._trusted or bool(self._models)

    @property
    def _free(self) -> bool:
        return self._trusted and not self._models

    # -- the list

    def figures(self) -> dict[str, object]:
        """Returns the loaded model, those that can be loaded, and the memory for them."""
        entries, complete = (given(self._models, self._catalog), True) if self._models else self._catalog.entries()
        (room, on_gpu), simulates = self._room(), self._host.config.run_as is not None
        listed = entries if simulates else self._with_current(entries)
        hardware = hardware_models() if self._free else None
        simulated = hardware.models() if hardware is not None else []
        return {
            "state": self._host.state,
            "model": self._names()[self._host.model],
            "name": self._host.status.model,
            "back": self._host.goes_back_to,
            "failed": self._failed(),
            "settings": {name: getattr(self._host.config, name) for name in SETTINGS} if self._trusted else None,
            "free": self._free,
            "complete": complete,
            "free_bytes": room,
            "models": [self._about(entry, room, on_gpu, current=not simulates) for entry in listed],
            "simulated": [self._about(entry, None, False, current=simulates) for entry in simulated],
        }

    def _with_current(self, entries: Sequence[ModelEntry]) -> list[ModelEntry]:
        """Returns the entries, preceded by the current model if it is not one of them."""
        model = self._host.model
        if any(entry.model == model for entry in entries):
            return list(entries)
        return [*given([model], self._catalog), *entries]

    def _about(self, entry: ModelEntry, room: int | None, on_gpu: bool, *, current: bool) -> dict[str, object]:
        too_large = _too_large(entry, room, on_gpu)
        fits = None if entry.weight_bytes is None or room is None else too_large is None
        return {
            **dataclasses.asdict(entry),
            "model": self._names().get(entry.model, entry.model),
            "refused": entry.refused or too_large,
            "fits": fits,
            "current": current and entry.model == self._host.model,
        }

    def _failed(self) -> str | None:
        status = self._host.status
        if status.failure is not None and self._host.over:
            return status.sentence
        try:
            return self._host.playground.notice
        except EngineError:
            return status.note or None

    def _names(self) -> dict[str, str]:
        """Returns what stands for each model in answers; visitors who are not trusted do not learn its path."""
        models = dict.fromkeys((*self._models, self._host.model))
        if self._trusted:
            return {model: model for model in models}
        names: dict[str, str] = {}
        for model in models:
            name = PurePath(model).name if model.startswith(("/", ".", "~")) or os.path.exists(model) else model
            names[model] = f"{name} ({len(names) + 1})" if name in names.values() else name
        return names

    def _room(self) -> tuple[int | None, bool]:
        """Returns the bytes that would be free without the running engine, and whether on a GPU; None if none is running,
        or a simulated one, which knows nothing of this machine."""
        if self._host.config.run_as is not None:
            return None, False
        try:
            engine = self._host.engine
            free: FreeMemory = engine.free_memory(_LOOK_S)
            info: EngineInfo = engine.info
        except (EngineError, TimeoutError):
            return None, False
        held = info.weight_bytes + info.num_blocks * info.block_size * info.kv_bytes_per_token
        return (free.device if free.device is not None else free.host) + held, free.device is not None

    # -- loading

    def load(self, body: Any) -> str:
        """End the running engine and load another model; returns its name at once.

        Args:
            body: ``model`` and any of ``SETTINGS`` that differ from the defaults.

        Raises:
            ValueError: it cannot be served, or a setting is wrong; one line. The running engine goes on.
            NotOfferedError: this client may not load it.
            LoadBusyError: another model is being loaded.
        """
        changes = validated(LoadOrder, body, "the body").model_dump(exclude_unset=True)
        model = self._named(changes.pop("model"))
        config = self._config(model, changes)
        hardware = hardware_models() if config.run_as is not None else None
        entry = hardware.check(model, config) if hardware is not None else self._checked(model)
        longest = config.max_model_len
        if longest is not None and entry.context is not None and longest > entry.context:
            raise ValueError(
                f"max_model_len is {whole(longest)}, but {entry.name} allows at most {whole(entry.context)}: use that or less"
            )
        if entry.source == "download":
            check_download(entry)
        self._host.switch(entry.model, config, name=entry.name)
        return entry.name

    def _named(self, model: str) -> str:
        if not model.strip() or len(model) > MAX_NAME or not model.isprintable():
            raise ValueError(f"model is {shown(model)}: use a path, a hub id, or a name from the list")
        model = model.strip()
        if self._free:
            return model
        names = self._names()
        offered = next((one for one, name in names.items() if model in (one, name)), None)
        if offered is None:
            raise NotOfferedError(f"{shown(model)} is not offered here: use one of {', '.join(names.values())}")
        return offered

    def _checked(self, model: str) -> ModelEntry:
        entry = self._catalog.find(model)
        if why := entry.refused or _too_large(entry, *self._room()):
            raise ValueError(f"{entry.name} cannot be served: {why}")
        return entry

    def _config(self, model: str, changes: Mapping[str, Any]) -> EngineConfig:
        """Returns the engine's settings: the command line's (those of a model only for its own) with ``changes``.

        A change to null restores the default.
        """
        if changes and not self._trusted:
            raise NotOfferedError("the engine's settings cannot be chosen here: send only the model")
        of_first = model == self._host.first_model
        settings = {name: value for name, value in self._asked.items() if of_first or name not in SETTINGS[:-1]}
        if changes.keys() & set(_POOL):  # each replaces the other
            changes = {**dict.fromkeys(_POOL), **changes}
        for name, value in changes.items():
            settings.pop(name, None)
            if value not in (None, ""):
                settings[name] = settings_of(EngineConfig)[name].given(name, value)
        return engine_settings(model, settings)

    def cancel(self) -> str:
        """Cancel the running load; returns the model that is loaded again. Raises ``LoadBusyError``."""
        return self._host.cancel()


def _too_large(entry: ModelEntry, room: int | None, on_gpu: bool) -> str | None:
    """Returns why a model does not fit into memory even without the running engine; None if it does."""
    needed = entry.needed_bytes(on_gpu=on_gpu)
    if needed is None or room is None or needed <= room:
        return None
    return (
        f"its weights need at least {number_text(needed / 1e9)} GB, but only {number_text(room / 1e9)} GB are free once the"
        " running model is closed"
    )
