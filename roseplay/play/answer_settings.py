"""The settings for a tab's answers: those of all its lanes, and those of single lanes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from roseplay.config import SamplingParams
from roseplay.core.info import EngineInfo
from roseplay.formats.json_text import json_object
from roseplay.formats.numbers import whole
from roseplay.formats.text import shown
from roseplay.own_models import SMOLLM2_NAME
from roseplay.settings import settings_of

MAX_SYSTEM_CHARS = 8000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one lane; values are checked as in ``SamplingParams``, which raises ``ValueError``.

    Attributes:
        system: system prompt; "" for none.
        seed: gives the same answer each time; ``None`` samples another one each time, in each lane.
        The others as in ``SamplingParams``.
    """

    system: str = ""
    temperature: float = 0.6
    top_p: float = 0.9
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    priority: int = 0
    tenant: str | None = None

    def __post_init__(self) -> None:
        checked_system(self.system)
        self.params()

    def params(self, seed: int | None = None) -> SamplingParams:
        """Returns the settings for the engine; ``seed`` overrides their own unless it is ``None``."""
        values = {name: getattr(self, name) for name in NAMES if name != "system"}
        return SamplingParams(**{**values, "seed": self.seed if seed is None else seed})

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Returns a copy with ``changes``, see ``read``; raises ``ValueError`` for an unknown name or a bad value."""
        return dataclasses.replace(self, **read(changes))


# For models whose authors recommend nothing. Without a penalty, SmolLM2 repeated itself in three of six answers.
_OURS: Mapping[str, Mapping[str, float]] = {SMOLLM2_NAME: {"repetition_penalty": 1.1}}

NAMES = tuple(field.name for field in dataclasses.fields(Settings))


def defaults(info: EngineInfo) -> Settings:
    """Returns the defaults for a model: its author's, if any, else ours; an answer gets at most half of the context.

    If the author recommends any sampling parameters, those left out are neutral.
    """
    recommended = dict(info.sampling_defaults)
    if recommended.keys() & {"temperature", "top_p", "top_k", "min_p"}:
        recommended = {"temperature": 1.0, "top_p": 1.0, **recommended}
    recommended = recommended or dict(_OURS.get(info.model, {}))
    most = int(recommended.pop("max_new_tokens", Settings.max_new_tokens))
    return Settings(**recommended, max_new_tokens=max(1, min(most, info.max_model_len // 2)))  # type: ignore[arg-type]


def read(changes: Any) -> dict[str, Any]:
    """Parse settings from programs and text boxes: an object or its JSON, with numbers possibly as text.

    An empty or zero ``top_k`` keeps all tokens, an empty ``seed`` means none; ``stop`` is a list, or text with one
    string per line in which ``\\n`` stands for a line break. Raises ``ValueError`` for an unknown name or an invalid
    number.
    """
    changes = json_object(changes, "the settings", '{"temperature": 0.2}')
    unknown = sorted(set(changes) - set(NAMES))
    if unknown:
        raise ValueError(f"unknown setting {', '.join(unknown)}: the settings are {', '.join(NAMES)}")
    return {name: _read(name, value) for name, value in changes.items()}


def _read(name: str, value: Any) -> Any:
    if name == "stop":
        lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(line.replace("\\n", "\n") if isinstance(line, str) else line for line in lines if line != "")
    if name == "system":
        return "" if value is None else value
    value = settings_of(SamplingParams)[name].given(name, value)
    return None if name == "top_k" and value == 0 else value


class TabSettings:
    """A tab's changes to the defaults: for all its lanes (0), and for single ones, which take precedence."""

    def __init__(self) -> None:
        self._changes: dict[int, dict[str, Any]] = {}
        self._lock = threading.Lock()  # two requests may change settings at once

    def of(self, lane: int, defaults: Settings) -> Settings:
        """Returns the settings of a lane; for lane 0, those of lanes without their own."""
        own = self._changes.get(lane, {}) if lane else {}
        return dataclasses.replace(defaults, **{**self._changes.get(0, {}), **own})

    def change(self, lane: int, changes: Mapping[str, Any], defaults: Settings, max_model_len: int) -> None:
        """Change settings of one lane, or for lane 0 those of all, while lanes keep their own settings.

        Raises:
            ValueError: a value is invalid, or there are more new tokens than the model accepts; nothing has changed.
        """
        values = read(changes)
        with self._lock:
            settings = self.of(lane, defaults).changed(values)
            check_length(settings.max_new_tokens, max_model_len)
            self._changes[lane] = {**self._changes.get(lane, {}), **values}

    def own(self, lane: int) -> list[str]:
        """Returns the names of a lane's own settings; for lane 0, of those that differ from the defaults."""
        return [name for name in NAMES if name in self._changes.get(lane, {})]

    def reset(self, lane: int) -> None:
        """Reset a lane to the settings of all lanes, or for lane 0, all lanes to the defaults."""
        with self._lock:
            self._changes.pop(lane, None)


def checked_system(system: Any) -> str:
    """Returns a system prompt, "" for ``None``; raises ``ValueError`` if it is not text or too long."""
    if not isinstance(system, str | None):
        raise ValueError(f"system is {shown(system)}: use text")
    if system and len(system) > MAX_SYSTEM_CHARS:
        size, most = whole(len(system)), whole(MAX_SYSTEM_CHARS)
        raise ValueError(f"the system prompt has {size} characters: use at most {most}")
    return system or ""


def check_length(max_new_tokens: int, max_model_len: int) -> None:
    """Raises ``ValueError`` if an answer of this length leaves no room for a prompt."""
    if max_new_tokens >= max_model_len:
        raise ValueError(
            f"max_new_tokens is {max_new_tokens}, but prompt and answer together can have {max_model_len} tokens: "
            f"use at most {max_model_len - 1}"
        )
