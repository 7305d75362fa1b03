"""Writes docs/settings.md from the catalogue of settings: ``python docs/settings.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.settings import Setting, settings_of

PAGE = Path(__file__).with_suffix(".md")
_INTRODUCTION = """\
# Settings

This page is made from `roseplay/config.py` by `python docs/settings.py`. The flags of `roseplay play`, `roseplay lab` and
`roseplay bench` have the names of the fields: `max_batch_size` is `--max-batch-size`, a switch has `--prefix-cache` and
`--no-prefix-cache`. In Python they are arguments: `Engine("tiny-chat", max_batch_size=8)`. `/set_knobs` of the page takes
knobs as a JSON object.
"""
_PARTS = {
    "Knobs": (Knobs, "They may change while the engine runs; a change acts on the next step."),
    "Engine": (EngineConfig, "They are fixed from the engine's start to its end."),
    "Sampling": (SamplingParams, "They belong to a request: how its tokens are drawn and when it ends."),
}


def lines() -> Iterator[str]:
    """The lines of the page."""
    yield _INTRODUCTION
    for title, (kind, about) in _PARTS.items():
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        yield f"## {title}\n\n{about}\n"
        yield "| name | default | takes | what it does | vLLM |\n|---|---|---|---|---|"
        for name, setting in settings_of(kind).items():
            yield _row(name, setting, defaults[name])
        yield ""


def _row(name: str, setting: Setting, default: object) -> str:
    none = f", or none ({setting.values.none})" if setting.values.none else ""
    takes = f"{setting.values}{none}{f', in {setting.unit}' if setting.unit else ''}"
    needs = f" Needs {setting.needs}." if setting.needs else ""
    vllm = f"`{setting.vllm}`" if setting.vllm else ""
    return f"| `{name}` | {setting.show(default)} | {takes} | {setting.help}{needs} | {vllm} |".replace("*", "\\*")


def text() -> str:
    return "\n".join(lines()).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
