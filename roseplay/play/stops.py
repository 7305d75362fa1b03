"""The positions of a slider: evenly spaced values that grow by factors, with "unlimited" at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from roseplay.config import Knobs
from roseplay.play.steady import LEAST_RATE, MOST_RATE
from roseplay.settings import settings_of

UNLIMITED = "∞"


@dataclass(frozen=True)
class Stops:
    """The values of a slider's positions; ``None`` is unlimited, and comes twice at the end to set it apart.

    Attributes:
        marks: the values that are labelled below the track.
    """

    name: str
    values: tuple[float | None, ...]
    marks: tuple[float | None, ...] = ()

    def place(self, value: float | None) -> int:
        """Returns the position nearest to a value, on a logarithmic scale."""
        if value is None:
            return len(self.values) - 1
        return min(
            (i for i, stop in enumerate(self.values) if stop is not None),
            key=lambda i: abs(math.log((self.values[i] or 1) / value)),
        )

    def text(self, value: float | None) -> str:
        return UNLIMITED if value is None else f"{value:.12g}"

    def parse(self, text: str) -> float | None:
        """Parse a typed value; raises ``ValueError`` unless it is a number of at least 1 or stands for unlimited."""
        word = _word(text)
        if word in ("", UNLIMITED, "null", "none") or word.startswith(("inf", "unl")):
            return None
        if not word.isdecimal() or not 1 <= int(word) <= 10**9:
            raise ValueError(f"{self.name} must be at least 1, or {UNLIMITED}.")
        return int(word)

    def ticks(self) -> str:
        """Returns HTML for the scale below the track."""
        last = len(self.values) - 1
        marks = (f'<span style="--p:{self.place(v) / last:.4f}">{self.text(v)}</span>' for v in self.marks)
        return f'<div class="rp-ticks" aria-hidden="true">{"".join(marks)}</div>'


class RateStops(Stops):
    """The positions of a slider for requests per second, which are always limited."""

    def parse(self, text: str) -> float:
        """Parse a typed rate; raises ``ValueError`` if steady traffic cannot have it."""
        try:
            rate = float(_word(text))
        except ValueError:
            rate = float("nan")
        if not LEAST_RATE <= rate <= MOST_RATE:
            raise ValueError(f"{self.name} must be from {LEAST_RATE:g} to {MOST_RATE:g}.")
        return rate


def _word(text: str) -> str:
    return str(text).strip().lower().replace("\u202f", "").replace(" ", "")


BUDGET = Stops("The prefill budget", (16, 32, 64, 128, 256, 512, 1024, 2048, None, None), (16, 64, 256, 1024, None))
STEP_TOKENS = Stops("Step tokens", BUDGET.values)
REQUESTS = Stops("Prefill requests", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, None))
RATE = RateStops("The rate", (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, MOST_RATE))
_OF_KNOBS = {"prefill_max_tokens": BUDGET, "prefill_max_batch_size": REQUESTS, "step_max_tokens": STEP_TOKENS}


_KNOBS = settings_of(Knobs)


def stops_of(knob: str) -> Stops | None:
    """Returns the positions of a knob's slider; ``None`` if each value is a position: it cannot be unlimited."""
    setting = _KNOBS[knob]
    if not setting.control or not setting.values.none:
        return None
    return _OF_KNOBS.get(knob) or Stops(setting.label, (*(2**power for power in range(11)), None))


def read_knob(knob: str, text: str) -> Any:
    """Parse the text in a knob's box; text for knobs without a box is returned unchanged.

    Raises:
        ValueError: the text is invalid; the message is one sentence on what the knob accepts.
    """
    if knob == "slow_motion":
        try:
            factor = float(_word(text).lstrip("×x"))
        except ValueError:
            factor = float("nan")
        values = _KNOBS[knob].values
        if not (factor > 1 and values.allows(factor)):
            raise ValueError(f"{_KNOBS[knob].label} must be above 1 and at most {getattr(values, 'most', None):g}.")
        return factor
    stops = stops_of(knob) if knob in _KNOBS else None
    return text if stops is None else stops.parse(text)
