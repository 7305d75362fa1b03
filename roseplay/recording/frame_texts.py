"""The texts of a frame's new tokens, of its new requests' prompts, and the names of their tenants.

Frames sent to browsers have none of these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from operator import itemgetter

from roseplay.recording.request_registry import RequestRegistry, TrackedRequest
from roseplay.recording.schema import Frame

LONGEST_TITLE = 400


# One tab's texts in one frame: ``[request id, title]`` of new requests; ``[request id, token index, text]``, where
# pieces with the same index are joined; and ``[request id, tenant]`` of new requests that have one.
Texts = tuple[list[tuple[int, str]], list[tuple[int, int, str]], list[tuple[int, str]]]


@dataclass(slots=True)
class _Taken:
    """How much of a request's text is in earlier frames."""

    due: int = 0
    tokens: int = 0
    chars: int = 0
    ended: bool = False


class TextCollector:
    """Collects the texts that belong to a frame. Only one thread may call ``take``."""

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._taken: dict[int, _Taken] = {}

    def take(self, frame: Frame) -> dict[str, Texts]:
        """Returns the texts of a frame, by tab; the tab "" stands for programs."""
        texts: defaultdict[str, Texts] = defaultdict(lambda: ([], [], []))
        touched: set[int] = set()
        for request_id, kind, *_ in frame["requests"]:
            tracked = self._registry.get(request_id)
            if kind == "submitted" and tracked:
                texts[tracked.tab][0].append((request_id, tracked.title[:LONGEST_TITLE]))
                if tracked.stream.params.tenant is not None:
                    texts[tracked.tab][2].append((request_id, tracked.stream.params.tenant))
            elif kind == "finished":
                self._taken.setdefault(request_id, _Taken()).ended = True
                touched.add(request_id)
        counts = Counter(map(itemgetter(0), frame["tokens"]))
        for request_id, count in counts.items():
            self._taken.setdefault(request_id, _Taken()).due += count
        touched.update(counts)
        for request_id in touched:
            tracked = self._registry.get(request_id)
            if tracked:  # else its sender is about to register it; this text is taken with the next token's
                texts[tracked.tab][1].extend(self._new_texts(tracked, self._taken[request_id]))
        # Ended requests are dropped once the registry has: the last token's text may come a frame after the end.
        for request_id in [i for i, taken in self._taken.items() if taken.ended and self._registry.get(i) is None]:
            del self._taken[request_id]
        return texts

    @staticmethod
    def _new_texts(tracked: TrackedRequest, taken: _Taken) -> list[tuple[int, int, str]]:
        stream = tracked.stream
        ends, text = stream.text_ends, stream.text
        texts: list[tuple[int, int, str]] = []
        while taken.tokens < (len(ends) if taken.ended else min(taken.due, len(ends))):
            end = ends[taken.tokens]
            if end > taken.chars:
                texts.append((stream.request_id, taken.tokens, text[taken.chars : end]))
            taken.tokens, taken.chars = taken.tokens + 1, max(taken.chars, end)
        if taken.ended and len(text) > taken.chars:  # text held back because it could have become a stop string
            texts.append((stream.request_id, max(0, taken.tokens - 1), text[taken.chars :]))
            taken.chars = len(text)
        return texts
