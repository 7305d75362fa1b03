"""Which tokens came late, and why. It is decided here for the page, its recordings and the metrics."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from statistics import median
from typing import Literal, NamedTuple

from roseplay.engine.records import StepRow, TokenRow
from roseplay.recording.schema import Frame

TokenCause = Literal["preempted", "left out", "prompts", "masks", "copies", "batch", "host", "other"]
LATE = 1.5  # a gap of more than this many times the usual one is late
_LARGE_BATCH = 1.5  # times the usual one
_KEPT = 64  # steps without prompts, from which it is known what is usual
_LEAST = 5
_SEARCHED = 256  # steps, for those that left a request out
_MOST_PREEMPTED = 4096


class _Quiet(NamedTuple):
    """A step without prompts, or what is usual for one."""

    gap_ms: float
    device_ms: float
    batch: float


class LateTokens:
    """Compares each token's gap with the usual one: the median over the last steps that computed no prompts, in the
    present slow motion.

    The cause is the first that applies; if it is not known what is usual, neither masks, host nor one of the last three:
        ``preempted``: the request lost its blocks. ``left out``: steps of this gap computed others only. ``masks``: the
        step waited for more than half of the delay for what structured outputs allow. ``host``: of the delay, the device
        took at most half, as far as its time grew. ``prompts`` of others, in the token's step. ``copies`` of blocks before writing.
        ``batch``: it was much larger than usual. ``other``.
    """

    def __init__(self) -> None:
        self._quiet: deque[_Quiet] = deque(maxlen=_KEPT)
        self._steps: deque[StepRow] = deque(maxlen=_SEARCHED)
        self._preempted: dict[int, None] = {}

    def mark(self, frame: Frame) -> None:
        """Set ``usual_ms`` and ``cause`` of a frame's tokens, and ``usual_batch`` of its steps."""
        changed = [t for t, _, changes in frame["knobs"] if "slow_motion" in changes]
        tokens = {number: list(group) for number, group in groupby(frame["tokens"], lambda token: token.step_id)}
        parts = [(step, tokens.pop(step.step_id, [])) for step in frame["steps"]]
        frame["tokens"] = []
        for step, step_tokens in [*parts, *((None, rest) for rest in tokens.values())]:
            end = step.t1 if step else step_tokens[0].t
            if changed and changed[0] <= end:
                del changed[0]
                self._quiet.clear()
            usual_ms, causes = self.take(step, step_tokens)
            frame["tokens"] += [
                token._replace(usual_ms=usual_ms, cause=causes.get(place)) if token.itl_ms else token
                for place, token in enumerate(step_tokens)
            ]
        if changed:
            self._quiet.clear()

    def take(self, step: StepRow | None, tokens: list[TokenRow]) -> tuple[float | None, dict[int, TokenCause]]:
        """Returns the gap that was usual before a step's tokens, in ms, if known, and the causes of those that are late, by
        their places.

        Args:
            step: None for tokens that came together from another server; otherwise its ``usual_batch`` is set.
        """
        usual = self._usual()
        if step is not None:
            self._steps.append(step)
            self._preempted.update(dict.fromkeys(step.preempted))
            step.usual_batch = usual and usual.batch
        most_ms = LATE * usual.gap_ms if usual else 0.0
        late = ((place, token) for place, token in enumerate(tokens) if token.itl_ms and token.itl_ms > most_ms)
        causes = {place: cause for place, token in late if (cause := self._cause(step, token, usual))}
        for token in tokens if self._preempted else ():
            self._preempted.pop(token.request_id, None)
        while len(self._preempted) > _MOST_PREEMPTED:
            del self._preempted[next(iter(self._preempted))]
        gaps = [token.itl_ms for token in tokens if token.itl_ms]
        if gaps and (step is None or not step.prompt_tokens):
            device_ms, batch = (step.device_ms, step.decode_tokens) if step else (0.0, len(tokens))
            self._quiet.append(_Quiet(median(gaps), device_ms, batch))
        return usual and usual.gap_ms, causes

    def _usual(self) -> _Quiet | None:
        if len(self._quiet) < _LEAST:
            return None
        gap_ms, device_ms, batch = (median(values) for values in zip(*self._quiet, strict=True))
        return _Quiet(round(gap_ms, 2), device_ms, batch)

    def _cause(self, step: StepRow | None, token: TokenRow, usual: _Quiet | None) -> TokenCause | None:
        if token.request_id in self._preempted:
            return "preempted"
        if step is None:
            return "other" if usual else None
        if self._left_out(token):
            return "left out"
        prompts = step.prompt_tokens > sum(it.prompt_tokens for it in step.entries if it.request_id == token.request_id)
        if usual is None:
            return "prompts" if prompts else None
        delay_ms = (token.itl_ms or 0.0) - usual.gap_ms
        if step.mask_wait_ms > delay_ms / 2:
            return "masks"
        # In slow motion, gaps are stretched but the device's time is not: their ratio is the same for quiet steps.
        if usual.device_ms and usual.gap_ms * (step.device_ms / usual.device_ms - 1) <= delay_ms / 2:
            return "host"
        if prompts:
            return "prompts"
        if step.block_copies:
            return "copies"
        return "batch" if step.decode_tokens > _LARGE_BATCH * usual.batch else "other"

    def _left_out(self, token: TokenRow) -> bool:
        """Whether a step began and ended within the gap and computed other requests only."""
        before = reversed(self._steps)
        next(before)  # the token's own step
        for step in before:
            if step.t0 < token.t - (token.itl_ms or 0.0) - 1:
                return False
            if all(entry.request_id != token.request_id for entry in step.entries):
                return True
        return False
