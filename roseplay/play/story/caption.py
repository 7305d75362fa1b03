"""Captions: sentences whose figures are fields, as the page shows them and a program can read them.

A sentence is written as one or more forms, such as ``**{prompts} arrived** with budget [[{value}]].``: figures stand in
braces, ``**`` begins and ends emphasis, and ``[[ ]]`` is around the value of a setting. The first form whose figures are
all known is used; a sentence without one is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from roseplay.formats.segments import BOLD, VALUE, Segments

Forms = str | tuple[str, ...]
Figures = Mapping[str, str]

_MARK = re.compile(r"(\*\*|\[\[|\]\]|\{\w+\})")


class Segment(NamedTuple):
    """Part of a caption: a figure, or the words between two."""

    text: str
    style: str = ""  # ``BOLD``, ``VALUE`` or ""
    figure: str = ""  # its name; "" for words


Caption = list[Segment]


def caption(sentences: Iterable[Forms], figures: Figures) -> Caption:
    """Returns the sentences that can be told with these figures."""
    segments: Caption = []
    for forms in sentences:
        filled = (_filled(form, figures) for form in ((forms,) if isinstance(forms, str) else forms))
        if sentence := next(filter(None, filled), None):
            segments += [Segment(" "), *sentence] if segments else sentence
    return segments


def _filled(form: str, figures: Figures) -> Caption | None:
    segments, bold, value = [], False, False
    for part in _MARK.split(form):
        match part:
            case "":
                pass
            case "**":
                bold = not bold
            case "[[" | "]]":
                value = part == "[["
            case _:
                figure = part[1:-1] if part[0] == "{" else ""
                if figure and figure not in figures:
                    return None
                text = figures[figure] if figure else part
                segments.append(Segment(text, VALUE if value else BOLD if bold else "", figure))
    return segments


class _Names(dict[str, str]):
    """Figures that all have their names as values."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return name


def longest(sentences: Iterable[Forms]) -> Caption:
    """Returns the sentences in their longest forms, with names in place of figures."""
    return caption((forms if isinstance(forms, str) else max(forms, key=len) for forms in sentences), _Names())


def figures_in(told: Caption) -> dict[str, str]:
    return {segment.figure: segment.text for segment in told if segment.figure}


def for_page(told: Caption) -> Segments:
    """Returns a caption in the page's format."""
    return [["".join(segment.text for segment in part), style] for style, part in groupby(told, lambda it: it.style)]
