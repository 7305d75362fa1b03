"""The settings for a tab's answers: those of all its lanes, and those of single lanes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from roseplay.config import SamplingParams
from roseplay.core.info import EngineInfo
from roseplay.formats.numbers import whole
from roseplay.formats.text import shown
from roseplay.own_models import SMOLLM2_NAME
from roseplay.settings import Strings, Text, redeclared, setting, settings_of

MAX_SYSTEM_CHARS = 8000


@dataclass(frozen=True, kw_only=True)
class Settings(SamplingParams):
    """The settings of one lane: the sampling parameters that have a control, with defaults for chats, and the system
    prompt. Raises ``ValueError`` for a bad value.
    """

    temperature: float = redeclared(SamplingParams, "temperature", 0.6)
    top_p: float = redeclared(SamplingParams, "top_p", 0.9)
    max_new_tokens: int = redeclared(SamplingParams, "max_new_tokens", 256)
    system: str = setting(
        "",
        Text(MAX_SYSTEM_CHARS, least=0),
        "System prompt",
        "before every chat",
        "Instructions to the model before the conversation. They count as prompt tokens.",
        control="sampling-system",
        multiline=True,
    )

    def params(self, seed: int | None = None) -> SamplingParams:
        """Returns the settings for the engine; ``seed`` overrides their own unless it is ``None``."""
        values = {name: getattr(self, name) for name in settings_of(SamplingParams)}
        return SamplingParams(**{**values, "seed": self.seed if seed is None else seed})

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Returns a copy with ``changes``, see ``read``; raises ``ValueError`` for an unknown name or a bad value."""
        return dataclasses.replace(self, **read(changes))


# For models whose authors recommend nothing. Without a penalty, SmolLM2 repeated itself in three of six answers.
_OURS: Mapping[str, Mapping[str, float]] = {SMOLLM2_NAME: {"repetition_penalty": 1.1}}

NAMES = ("system", *(name for name, it in settings_of(SamplingParams).items() if it.control))


def defaults(info: EngineInfo) -> Settings:
    """Returns the defaults for a model: its author's, if any, else ours; an answer gets at most half of the context.

    If the author recommends how tokens are drawn, parameters that are left out are neutral.
    """
    recommended = dict(info.sampling_defaults)
    if recommended.keys() - {"repetition_penalty", "max_new_tokens"}:
        recommended = {"temperature": 1.0, "top_p": 1.0, **recommended}
    recommended = recommended or dict(_OURS.get(info.model, {}))
    most = int(recommended.pop("max_new_tokens", Settings.max_new_tokens))
    return Settings(**recommended, max_new_tokens=max(1, min(most, info.max_model_len // 2)))  # type: ignore[arg-type]


def read(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Parse settings from programs and text boxes, with numbers possibly as text.

    An empty or zero ``top_k`` keeps all tokens, an empty ``seed`` means none; ``stop`` is a list, or text with one
    string per line in which ``\\n`` stands for a line break. Raises ``ValueError`` for an unknown name or an invalid
    number.
    """
    if unknown := sorted(set(changes) - set(NAMES)):
        raise ValueError(f"unknown setting {', '.join(unknown)}: the settings are {', '.join(NAMES)}")
    return {name: _read(name, value) for name, value in changes.items()}


def _read(name: str, value: Any) -> Any:
    if name == "system":
        return checked_system(value)
    described = settings_of(SamplingParams)[name]
    if isinstance(described.values, Strings):
        lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(line.replace("\\n", "\n") if isinstance(line, str) else line for line in lines if line != "")
    return described.given(name, value)


class TabSettings:
    """A tab's changes to the defaults: for all its lanes (0), and for single ones, which take precedence."""

    def __init__(self) -> None:
        self._changes: dict[int, dict[str, Any]] = {}
        self._lock = threading.Lock()  # two requests may change settings at once

    def of(self, lane: int, defaults: Settings) -> Settings:
        """Returns the settings of a lane; for lane 0, those of lanes without their own."""
        changes = self._changes.get(lane, {}) if lane else {}
        return dataclasses.replace(defaults, **{**self._changes.get(0, {}), **changes})

    def change(self, lane: int, changes: Mapping[str, Any], defaults: Settings, max_model_len: int) -> None:
        """Change settings of one lane, or for lane 0 those of all, while lanes keep their own settings.

        Raises:
            ValueError: a value is invalid, or there are more new tokens than the model accepts; nothing has changed.
        """
        values = read(changes)
        with self._lock:
            check_length(self.of(lane, defaults).changed(values).max_new_tokens, max_model_len)
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
