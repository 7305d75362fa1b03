"""The words of a frame: what each new token said, and what each new request was asked. Live frames have neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from roseplay.json_text import encode
from roseplay.recording.book import Book, Tracked

LONGEST_TITLE = 400


@dataclass(slots=True)
class Words:
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
class _Told:
    """How far the text of a request has been told."""

    due: int = 0
    tokens: int = 0
    chars: int = 0
    ended: bool = False


class WordTaker:
    """Finds the words that belong to a frame. One thread calls ``take``."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._told: dict[int, _Told] = {}

    def take(self, frame: dict[str, Any]) -> dict[str, Words]:
        """The words of a frame, by tab."""
        found: dict[str, Words] = {}
        touched: set[int] = set()
        for request_id, kind, *_ in frame["requests"]:
            tracked = self._book.get(request_id)
            if kind == "submitted" and tracked:
                title = tracked.title[:LONGEST_TITLE]
                found.setdefault(tracked.tab, Words()).titles.append([request_id, title])
            elif kind == "finished":
                self._told.setdefault(request_id, _Told()).ended = True
                touched.add(request_id)
        for token in frame["tokens"]:
            self._told.setdefault(token[0], _Told()).due += 1
            touched.add(token[0])
        for request_id in touched:
            tracked = self._book.get(request_id)
            if tracked:  # else its sender is about to say who it is, and the next token brings this one's text
                texts = self._new_texts(tracked, self._told[request_id])
                if texts:
                    found.setdefault(tracked.tab, Words()).texts.extend(texts)
        self._forget()
        return found

    @staticmethod
    def _new_texts(tracked: Tracked, told: _Told) -> list[list[Any]]:
        stream = tracked.stream
        ends, text = stream.text_ends, stream.text
        texts: list[list[Any]] = []
        while told.tokens < (len(ends) if told.ended else min(told.due, len(ends))):
            end = ends[told.tokens]
            if end > told.chars:
                texts.append([stream.request_id, told.tokens, text[told.chars : end]])
            told.tokens, told.chars = told.tokens + 1, max(told.chars, end)
        if told.ended and len(text) > told.chars:  # what was held back in case it became a stop string
            texts.append([stream.request_id, max(0, told.tokens - 1), text[told.chars :]])
            told.chars = len(text)
        return texts

    def _forget(self) -> None:
        """The last token may be told a frame after the end, so requests go when the page forgets them."""
        for request_id in [i for i, told in self._told.items() if told.ended and self._book.get(i) is None]:
            del self._told[request_id]
