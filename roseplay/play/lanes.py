"""A lane: one chat of one tab, and the part of it that the tab does not have yet."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from roseplay.play.chats import Answer, Chat, Turn
from roseplay.recording.schema import MAX_LANES

_RATE_TOKENS = 32  # a lane's tok/s is measured over this many tokens


@dataclass(frozen=True, slots=True)
class Known:
    """What a tab already has of a lane.

    This is the edition of its chat and, for the newest turn in it, the request, the number of characters, tokens and
    late tokens, and the stamp of the figures. It has all earlier turns completely.
    """

    edition: int
    request_id: int
    chars: int
    tokens: int
    late: int
    stamp: int


def parse_seen(have: str) -> dict[int, Known]:
    """Parse ``have`` of a poll: lanes separated by commas, each the lane's number and a ``Known``, joined by dots.

    Unreadable parts count as not seen.
    """
    seen: dict[int, Known] = {}
    for part in have.split(",")[: 2 * MAX_LANES] if have else ():
        numbers = part.split(".")
        if len(numbers) == 7 and all(number.isdecimal() and len(number) < 16 for number in numbers):
            lane, *rest = map(int, numbers)
            seen[lane] = Known(*rest)
    return seen


class Lane:
    def __init__(self, number: int) -> None:
        self.number = number
        self.chat = Chat()

    def update(self, seen: Known | None, now_ns: int, ms: Callable[[int], float]) -> dict[str, object] | None:
        """Returns what a tab that has ``seen`` lacks (``LaneNews`` of ``shared/types.js``), ``None`` if nothing.

        ``ms`` converts engine times to the page's.
        """
        edition, turns = self.chat.state
        if edition == 0:
            return None
        last = turns[-1] if turns else None
        answer = last.answer if last else Answer("", (), (), {})
        request_id = last.request_id if last else 0
        stamp = zlib.crc32(repr(answer.figures).encode())
        now = Known(edition, request_id, len(answer.text), len(answer.ends), len(answer.late), stamp)
        if seen == now:
            return None
        lacking = turns[-1:] if seen and seen.edition == edition else tuple(t for t in turns if lacks(seen, t))
        tracked = last.tracked if last else None
        submitted_ns = tracked.stream.metrics.submitted_ns if tracked and not tracked.finished else None
        return {
            "lane": self.number,
            "have": ".".join(map(str, (self.number, *astuple(now)))),
            "order": None if seen and seen.edition == edition else [turn.request_id for turn in turns],
            "turns": [turn_update(turn, turn.answer if turn is not last else answer, seen, ms) for turn in lacking],
            "rid": last.request_id if last else None,
            "title": last.question if last else "",
            "tok_s": rate(answer.times_ns),
            "waiting_ms": None if submitted_ns is None else round((now_ns - submitted_ns) / 1e6, 1),
            **answer.figures,
        }


def lacks(seen: Known | None, turn: Turn) -> bool:
    """Whether a tab may lack part of a turn: the newest one that it has may have grown since."""
    return seen is None or turn.born > seen.edition or turn.request_id == seen.request_id


def turn_update(turn: Turn, answer: Answer, seen: Known | None, ms: Callable[[int], float]) -> dict[str, object]:
    """Returns the part of a turn that a tab lacks, ``TurnNews`` of ``shared/types.js``."""
    had = seen if seen and seen.request_id == turn.request_id and seen.edition >= turn.born else None
    if had and (had.chars > len(answer.text) or had.tokens > len(answer.ends)):
        had = None
    chars, tokens, late = (had.chars, had.tokens, had.late) if had else (0, 0, 0)
    ends = [0, *answer.ends][tokens:]
    times = [round(100 * ms(time_ns)) for time_ns in answer.times_ns[max(0, tokens - 1) :]]
    times = times if tokens else [0, *times]
    return {
        "rid": turn.request_id,
        "question": turn.question,
        "model": turn.model,
        "left_out": turn.left_out,
        "thinking": turn.thinking,
        "no_role": turn.no_role,
        "text_from": chars,
        "text": answer.text[chars:],
        "tokens_from": tokens,
        "widths": [utf16(answer.text[start:end]) for start, end in pairwise(ends)],
        "times": [time - before for before, time in pairwise(times)],
        "late": answer.late[late:],
        "state": answer.figures.get("state"),
        "prompt": answer.figures.get("prompt"),
        "cached": answer.figures.get("cached"),
        "error": answer.figures.get("error"),
    }


def utf16(text: str) -> int:
    """Returns the length of a text in UTF-16 units, as JavaScript counts them."""
    return len(text) + sum(char > "\uffff" for char in text)


def rate(times_ns: Sequence[int]) -> float | None:
    """Returns tokens per second over the newest tokens; ``None`` for fewer than two."""
    times = times_ns[-_RATE_TOKENS:]
    span = times[-1] - times[0] if len(times) > 1 else 0
    return round((len(times) - 1) * 1e9 / span, 1) if span > 0 else None
