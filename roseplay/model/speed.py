"""How long a step takes on this machine: measured at the start, then kept up to date by the steps that run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from roseplay.core.step import Step
from roseplay.model.loaded_model import LoadedModel

# A step on a CPU should not take longer than this, so that its limit is as many prompt tokens as are computed meanwhile.
STEP_S = 10.0
# Sizes tried at the start, in tokens, as long as the next one is expected to end within MEASURE_S in all.
MEASURE_SIZES, MEASURE_S = (1, 4, 16, 64, 256), 0.3
# An estimate moves by this share towards a slower and a faster step, and never to more than so many times itself at once:
# it follows a machine that slows down, and a step during which the machine was suspended does not spoil it.
_SLOWER, _FASTER, _MOST = 0.5, 0.125, 4.0


class StepTimes:
    """Predicts the seconds of a step: a constant, and a share for each token that grows with the context it attends to.

    Args:
        even_context: tokens of context at which attention costs a token as much as the rest of the model does.
        max_model_len: longest request, in tokens.

    Attributes:
        base_s: seconds of a step however few its tokens: on a CPU mostly the time that reading the weights takes.
        token_s: seconds of one more token without context.
    """

    def __init__(self, even_context: float, max_model_len: int) -> None:
        self._even_context = even_context
        self._max_model_len = max_model_len
        self._last: tuple[Step | None, float] = (None, 0.0)
        self.base_s = 0.0
        self.token_s = 0.0

    def predict_s(self, step: Step) -> float:
        return self.base_s + self.token_s * self._work(step)

    def tokens_in(self, seconds: float) -> int:
        """Prompt tokens that a step computes in so many seconds, halfway through the longest prompt; at least 1."""
        token_s = self.token_s * self._cost(self._max_model_len / 2)
        return max(1, int(max(0.0, seconds - self.base_s) / max(token_s, 1e-9)))

    def measure(self, run: Callable[[int], None], first: dict[int, float]) -> None:
        """Time steps of growing size, each of prompts as long as they may be, until ``MEASURE_S`` is spent.

        Args:
            run: computes so many tokens, and waits for them.
            first: seconds that some sizes took at their first run, which may have compiled something; they bound what
                sizes take that there is no time to run again.
        """
        took = dict(first)
        spent, before = 0.0, (1, 0.0)
        for tokens in MEASURE_SIZES:
            if spent + before[1] * tokens / before[0] > MEASURE_S:
                break
            begin = time.perf_counter()
            run(tokens)
            took[tokens] = time.perf_counter() - begin
            spent, before = spent + took[tokens], (tokens, took[tokens])
        self.base_s = took[min(took)]
        most = max(took)
        # One step that was slow by chance must not make tokens look free.
        seconds = max(took[most] - self.base_s, took[most] / 4)
        self.token_s = seconds / (most * self._cost(min(most, self._max_model_len) / 2))

    def observe(self, step: Step, seconds: float) -> None:
        """A step took so long: move the part of the estimate that is most of it."""
        work = self._work(step)
        if step.prompt_tokens > step.decode_tokens and self.token_s * work >= self.base_s:
            self.token_s = _moved(self.token_s, max(0.0, seconds - self.base_s) / work)
        elif work:
            self.base_s = _moved(self.base_s, max(0.0, seconds - self.token_s * work))

    def _cost(self, context: float) -> float:
        """What a token costs that attends to so many, in tokens without context."""
        return 1 + context / self._even_context

    def _work(self, step: Step) -> float:
        """A step's cost in tokens without context; that of the last step asked for is kept."""
        last, work = self._last
        if last is not step:
            work = sum(entry.num_tokens * self._cost(entry.start + entry.num_tokens / 2) for entry in step.entries)
            self._last = step, work
        return work


def even_context(loaded: LoadedModel) -> float:
    """Tokens of context at which a token's attention takes as many multiplications as the model's weights do."""
    heads = getattr(loaded.config.get_text_config(), "num_attention_heads", None)
    in_attention = 0
    for shape in loaded.kv_shapes.values():
        in_attention += (heads or shape.num_kv_heads) * (shape.k_dim + shape.v_dim)
    return max(1.0, loaded.weight_bytes / loaded.dtype.itemsize / max(1, in_attention))


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _moved(old: float, new: float) -> float:
    new = min(new, _MOST * old) if old > 0 else new
    return old + (_SLOWER if new > old else _FASTER) * (new - old)
