"""Sentences in parts with emphasis, as the page and reports show them: lists of ``[text, style]``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Annotated

from roseplay.formats.json_schema import list_of, row, text

Segments = Annotated[list[list[str]], list_of(row({"text": text(1000), "style": text(20)}))]

BOLD, VALUE = "bold", "value"  # the fact that matters, and a setting's value


def sentence(*parts: str | list[str]) -> Segments:
    """Returns a sentence of parts; those that are plain text have no emphasis, and empty ones are left out."""
    segments = [[part, ""] if isinstance(part, str) else part for part in parts]
    return [part for part in segments if part[0]]


def plain(sentence: Iterable[Sequence[str]]) -> str:
    """Returns the sentence, whose parts begin with their text, without emphasis."""
    return "".join(text for text, *_ in sentence)


def as_html(sentence: Segments) -> str:
    return "".join(f"<b>{escape(text)}</b>" if style else escape(text) for text, style in sentence)
