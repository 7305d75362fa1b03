"""Sentences with emphasis, in the page's format: lists of ``[text, style]``."""

from __future__ import annotations

import re
from typing import Any

from roseplay.config import Knobs
from roseplay.formats.numbers import whole
from roseplay.settings import settings_of

Segments = list[list[str]]

BOLD, VALUE = "bold", "value"  # the fact that matters, and a setting's value
_MARK = re.compile(r"(\*\*|\[\[[^][]+\]\])")
_KNOBS = settings_of(Knobs)


def segments(text: str) -> Segments:
    """Parse a sentence: ``**words**`` are bold, and ``[[words]]``, bold or not, are a setting's value."""
    found: Segments = []
    style = ""
    for part in _MARK.split(text):
        if part == "**":
            style = "" if style else BOLD
        elif part.startswith("[[") and part.endswith("]]"):
            found.append([part[2:-2], VALUE])
        elif part:
            found.append([part, style])
    return found


def plain(sentence: Segments) -> str:
    """Returns the sentence without emphasis."""
    return "".join(text for text, _ in sentence)


def knob_text(name: str, value: Any) -> str:
    """Returns a knob and its value, such as ``budget [[64]]``, ``[[no]] budget`` or ``prefix cache [[off]]``."""
    setting = _KNOBS.get(name)
    short = (setting.short or setting.label.lower()) if setting else name.replace("_", " ")
    if value is None:
        return f"[[no]] {short}"
    if isinstance(value, bool):
        return f"{short} [[{'on' if value else 'off'}]]"
    if isinstance(value, str):
        return f"{short} [[{value}]]"
    return f"{short} [[{value:g}]]" if isinstance(value, float) else f"{short} [[{whole(value)}]]"
