"""The words of a frame: what each new token said, and what each new request was asked. Live frames have neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from roseplay.json_text import encode
from roseplay.recording.request_registry import RequestRegistry, TrackedRequest

LONGEST_TITLE = 400


@dataclass(slots=True)
class FrameTexts:
    """The words of one tab's requests in one frame. The tab "" stands for programs, which have none.

    Attributes:
        titles: ``[request id, title]`` of new requests.
        texts: ``[request id, token index, text]``; what belongs to one index is joined.
    """

    titles: list[list[Any]] = field(default_factory=list)
    texts: list[list[Any]] = field(default_factory=list)

    def encoded(self) -> tuple[bytes, bytes]:
        """Titles and texts as the insides of JSON lists: those of several tabs are put together with commas."""
        return encode(self.titles)[1:-1], encode(self.texts)[1:-1]


@dataclass(slots=True)
class _Taken:
    """How much of a request's text earlier frames have."""

    due: int = 0
    tokens: int = 0
    chars: int = 0
    ended: bool = False


class TextCollector:
    """Finds the words that belong to a frame. One thread calls ``take``."""

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._taken: dict[int, _Taken] = {}

    def take(self, frame: dict[str, Any]) -> dict[str, FrameTexts]:
        """The words of a frame, by tab."""
        found: dict[str, FrameTexts] = {}
        touched: set[int] = set()
        for request_id, kind, *_ in frame["requests"]:
            tracked = self._registry.get(request_id)
            if kind == "submitted" and tracked:
                title = tracked.title[:LONGEST_TITLE]
                found.setdefault(tracked.tab, FrameTexts()).titles.append([request_id, title])
            elif kind == "finished":
                self._taken.setdefault(request_id, _Taken()).ended = True
                touched.add(request_id)
        for token in frame["tokens"]:
            self._taken.setdefault(token[0], _Taken()).due += 1
            touched.add(token[0])
        for request_id in touched:
            tracked = self._registry.get(request_id)
            if tracked:  # else its sender is about to say who it is, and the next token brings this one's text
                texts = self._new_texts(tracked, self._taken[request_id])
                if texts:
                    found.setdefault(tracked.tab, FrameTexts()).texts.extend(texts)
        self._forget()
        return found

    @staticmethod
    def _new_texts(tracked: TrackedRequest, taken: _Taken) -> list[list[Any]]:
        stream = tracked.stream
        ends, text = stream.text_ends, stream.text
        texts: list[list[Any]] = []
        while taken.tokens < (len(ends) if taken.ended else min(taken.due, len(ends))):
            end = ends[taken.tokens]
            if end > taken.chars:
                texts.append([stream.request_id, taken.tokens, text[taken.chars : end]])
            taken.tokens, taken.chars = taken.tokens + 1, max(taken.chars, end)
        if taken.ended and len(text) > taken.chars:  # what was held back in case it became a stop string
            texts.append([stream.request_id, max(0, taken.tokens - 1), text[taken.chars :]])
            taken.chars = len(text)
        return texts

    def _forget(self) -> None:
        """The last token may be told a frame after the end, so requests go when the page forgets them."""
        for request_id in [i for i, taken in self._taken.items() if taken.ended and self._registry.get(i) is None]:
            del self._taken[request_id]
