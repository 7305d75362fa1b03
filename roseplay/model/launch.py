"""A step that has been launched, and waiting for its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from roseplay.core.step import Step, StepResult
from roseplay.model.device_errors import judge
from roseplay.model.masks import StepMasks
from roseplay.model.prompt_logprobs import PromptLogprobs, has_nan
from roseplay.model.restrictions import is_restricted
from roseplay.model.step_sampler import Draws

BAD_LOGITS = (
    "the model gave NaN logits for this request (or infinite ones), so no token can be drawn: its numbers overflow in"
    " this dtype, or its weights are damaged; try dtype float32"
)
NONE_ALLOWED = (
    "no token is left that may be drawn: allowed_token_ids, bad_words, logit_bias and a structured output exclude them all,"
    " or the model gave NaN logits"
)


class DeviceTimer:
    """Measures the time from a step's first work on a GPU to its last; on a CPU it measures nothing."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        self.device = device
        self._on_gpu = device.type == "cuda"
        self.mark()

    def mark(self) -> None:
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def read_ns(self) -> int | None:
        """Nanoseconds from the first mark to the last; waits for the last. None on a CPU."""
        if not self._on_gpu:
            return None
        begin, *_, end = self._events
        end.synchronize()
        return round(begin.elapsed_time(end) * 1e6)


@dataclass(slots=True)
class LaunchedStep:
    """A step that was launched."""

    step: Step
    draws: Draws | None  # the drawn tokens; None if the step draws none
    timer: DeviceTimer
    prepare_ns: int  # as in ``StepResult``
    forward_ns: int
    sample_ns: int
    replayed: bool | None
    observe: Callable[[Step, float], None]  # called with the step and the seconds that it took
    prompt_logprobs: PromptLogprobs | None = None  # the log-probabilities of prompt tokens; None if the step wants none
    masks: StepMasks | None = None  # the masks that were applied

    def result(self) -> StepResult:
        """Wait for the step and return its result. Raises ``DeviceLostError`` if the GPU can no longer be used."""
        try:
            return self._wait()
        except Exception as error:
            failure = judge(error, self.timer.device)
            if failure is error:
                raise
            raise failure from error

    def _wait(self) -> StepResult:
        count = len(self.step.entries)
        result = StepResult([None] * count, [None] * count)
        for (i, after), token, logprobs in self.draws.read() if self.draws is not None else ():
            if after:
                drawn = result.after_draft.setdefault(i, [])
                if token is not None and len(drawn) == after - 1:
                    drawn.append((token, logprobs))
                continue
            result.token_ids[i], result.logprobs[i] = token, logprobs
            if token is None:
                request = self.step.entries[i].request
                stuck = None if request.matcher is None else request.matcher.error
                why = NONE_ALLOWED if is_restricted(request) else BAD_LOGITS
                result.errors[i] = f"the answer cannot follow its grammar any further: {stuck}" if stuck else why
        if self.prompt_logprobs is not None:
            result.prompt_logprobs = self.prompt_logprobs.read()
            bad = [i for i, logprobs in result.prompt_logprobs.items() if has_nan(logprobs)]
            result.errors.update(dict.fromkeys(bad, BAD_LOGITS))
        device_ns = self.timer.read_ns()
        result.prepare_ns, result.forward_ns, result.sample_ns = self.prepare_ns, self.forward_ns, self.sample_ns
        result.device_ns = self.forward_ns if device_ns is None else device_ns
        result.replayed = self.replayed
        if self.masks is not None:
            result.mask_ns, result.mask_wait_ns = self.masks.took_ns, self.masks.waited_ns
        on_host_ns = self.prepare_ns + self.forward_ns + self.sample_ns
        self.observe(self.step, (on_host_ns if device_ns is None else device_ns) / 1e9)
        return result
