"""Generates docs/settings.md, the end of docs/endpoints.md and rows of docs/api.md from the catalogue:
``python docs/settings.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from roseplay.config import API_FIELDS, RECOMMENDED, EngineConfig, Knobs, SamplingParams
from roseplay.play.answer_settings import NAMES, Settings
from roseplay.serve.bodies import COMMON
from roseplay.settings import Setting, defaults_of, settings_of

SETTINGS = Path(__file__).with_suffix(".md")
ENDPOINTS, API = SETTINGS.with_name("endpoints.md"), SETTINGS.with_name("api.md")
_INTRODUCTION = """\
# Settings

This page is generated from `roseplay/config.py` by `python docs/settings.py`. The flags of `roseplay play`, `serve` and
`bench` are named after the fields: `max_batch_size` is `--max-batch-size`, and a switch has `--prefix-cache` and
`--no-prefix-cache`. `roseplay lab` has flags for engine settings; knobs are set for each arm: `--a max_batch_size=8`,
`--b prefix_cache=off`. In Python the fields are arguments: `Engine("tiny-chat", max_batch_size=8)`. The page's
`/set_knobs` takes knobs as a JSON object. null is `none` on the command line and `None` in Python.

The defaults are those of `Engine`. `roseplay play`, `serve` and `lab` run the worker in a process. `play` and `serve` use
one thread for tiny-chat, and the page gives tiny-chat and SmolLM2 449 KV blocks.
"""
_PARTS = {
    "Knobs": (Knobs, "These may change while the engine runs; a change takes effect at the next step."),
    "Engine": (EngineConfig, "These are fixed while the engine runs."),
    "Sampling": (
        SamplingParams,
        "These belong to one request. They set how its tokens are sampled, when it ends, and what scheduling policies know about it.",
    ),
}


_MARK = "<!-- What follows is generated from the catalogue of settings by `python docs/settings.py`. -->\n"
_OF_ANSWERS = """
## Settings of answers

`/chat`, `/submit` and `POST /ui/sampling` take these settings, which [Settings](settings.md#sampling) explains, and `system`,
the system prompt. A tab has defaults of its own, which limit an answer to at most half of the model's context.

| argument | values | default | default in a tab |
|---|---|---|---|"""


def settings_page() -> str:
    return "\n".join(_settings()).rstrip("\n") + "\n"


def endpoints_page() -> str:
    """Returns the page with its end regenerated; the part before the mark is written by hand."""
    written, mark, _ = ENDPOINTS.read_text(encoding="utf-8").partition(_MARK)
    return written + mark + "\n".join(_endpoints())


def api_page() -> str:
    """Returns the page with the rows of its sampling parameters regenerated."""
    drawn = {"how tokens are drawn": True, "other sampling parameters": False}
    rows = {
        f"| both: {title} |": ", ".join(
            f"`{field}`" for name, field in COMMON.items() if (name in RECOMMENDED) == recommended
        )
        for title, recommended in drawn.items()
    }
    lines = API.read_text(encoding="utf-8").splitlines()
    return "".join(
        next((f"{row} {fields} |" for row, fields in rows.items() if line.startswith(row)), line) + "\n"
        for line in lines
    )


def _settings() -> Iterator[str]:
    yield _INTRODUCTION
    for title, (kind, about) in _PARTS.items():
        yield f"## {title}\n\n{about}\n"
        yield "| name | default | values | what it does | vLLM |\n|---|---|---|---|---|"
        for name, setting in settings_of(kind).items():
            vllm = setting.vllm_name if kind is not SamplingParams else API_FIELDS[name]
            yield _row(name, setting, defaults_of(kind)[name], vllm)
        yield ""


def _row(name: str, setting: Setting, default: object, vllm: str) -> str:
    more = {"Watch": setting.watch, "Costs": setting.costs}
    words = [setting.explanation, *(f"{name}: {text}" for name, text in more.items() if text)]
    about = " ".join(words).replace("**", "")
    return _cells(f"`{name}`", setting.show(default), _takes(setting), about, f"`{vllm}`" if vllm else "")


def _endpoints() -> Iterator[str]:
    own, of_tab, settings = defaults_of(SamplingParams), defaults_of(Settings), settings_of(SamplingParams)
    yield _OF_ANSWERS
    for name in NAMES:
        if name in settings:
            show = settings[name].show
            yield _cells(f"`{name}`", _takes(settings[name]), show(own[name]), show(of_tab[name]))
    yield ""


def _takes(setting: Setting) -> str:
    return f"{setting.takes}, in {setting.unit}" if setting.unit else setting.takes


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |".replace("*", "\\*")


if __name__ == "__main__":
    SETTINGS.write_text(settings_page(), encoding="utf-8")
    ENDPOINTS.write_text(endpoints_page(), encoding="utf-8")
    API.write_text(api_page(), encoding="utf-8")
