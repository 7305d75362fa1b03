"""The positions of a slider: evenly spaced values that grow by factors, with "unlimited" at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

from roseplay.config import Knobs
from roseplay.play.steady import MOST_RATE
from roseplay.settings import settings_of

UNLIMITED = "∞"


@dataclass(frozen=True)
class Stops:
    """The values of a slider's positions; ``None`` is unlimited, and comes twice at the end to set it apart."""

    values: tuple[float | None, ...]
    marks: tuple[float | None, ...] = ()  # the values that are labelled below the track

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

    def ticks(self) -> str:
        """Returns HTML for the scale below the track."""
        last = len(self.values) - 1
        marks = (f'<span style="--p:{self.place(v) / last:.4f}">{self.text(v)}</span>' for v in self.marks)
        return f'<div class="rp-ticks" aria-hidden="true">{"".join(marks)}</div>'


BUDGET = Stops((16, 32, 64, 128, 256, 512, 1024, 2048, None, None), (16, 64, 256, 1024, None))
STEP_TOKENS = Stops(BUDGET.values)
REQUESTS = Stops((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, None))
RATE = Stops((0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, MOST_RATE))
_OF_KNOBS = {"prefill_max_tokens": BUDGET, "prefill_max_batch_size": REQUESTS, "step_max_tokens": STEP_TOKENS}
_KNOBS = settings_of(Knobs)


def stops_of(knob: str) -> Stops | None:
    """Returns the positions of a knob's slider; ``None`` if each value is a position: it cannot be unlimited."""
    setting = _KNOBS[knob]
    if not setting.control or not setting.values.none:
        return None
    return _OF_KNOBS.get(knob) or Stops((*(2**power for power in range(11)), None))
