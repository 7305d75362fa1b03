"""Predicts how long a step takes on this machine, from measurements at the start and from the steps that run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from roseplay.core.info import Choice
from roseplay.core.step import Step
from roseplay.model.loaded_model import LoadedModel
from roseplay.own_models import EMBEDDED

# A step on a CPU should not take longer than this many seconds: its prompt tokens are limited accordingly.
STEP_S = 10.0
# Sizes of the first steps, in tokens: a decode, a prompt that backends compute token by token, and a longer one.
FIRST_SIZES = (1, 2, 64)
# Step sizes measured at the start, in tokens, as long as all of them are expected to take at most MEASURE_S seconds. A
# decode is so short that other programs often disturb it: up to a third of that time is spent on more of them.
MEASURE_SIZES, MEASURE_DECODES, MEASURE_S = (1, 4, 16, 64, 256), 5, 2.0
ENOUGH = 16  # with a measured step of this many tokens, the first runs, which may include compilation, are not needed
# An answer with fewer tokens per second is too slow to watch.
WATCHABLE = 8.0
# Weights of a slower and of a faster step in the moving average of an estimate, and the largest factor by which one
# step counts: the estimate follows a machine that slows down, but not a step during which it was suspended.
_SLOWER, _FASTER, _MAX_FACTOR = 0.5, 0.125, 4.0


class StepTimes:
    """Predicts a step's duration: a constant, plus a cost per token that grows with the token's context.

    Args:
        even_context: number of tokens of context at which attention costs as much as the rest of the model.
        max_model_len: longest request, in tokens.

    Attributes:
        base_s: seconds that any step takes; on a CPU, mostly for reading the weights.
        token_s: seconds that each token without context adds.
        token_cost: ``token_s / base_s`` as measured at the start. Steps that run do not change it: a machine that is busy
            with something else slows both down, but a single slow prompt would raise ``token_s`` alone.
    """

    def __init__(self, even_context: float, max_model_len: int) -> None:
        self._even_context = even_context
        self._max_model_len = max_model_len
        self._last: tuple[Step | None, float] = (None, 0.0)
        self.base_s = 0.0
        self.token_s = 0.0
        self.token_cost = 0.0

    def predict_s(self, step: Step) -> float:
        return self.base_s + self.token_s * self._work(step)

    def tokens_in(self, seconds: float) -> int:
        """Returns how many prompt tokens a step computes in ``seconds``, halfway through the longest prompt; at least
        1.
        """
        token_s = self.token_s * self._cost(self._max_model_len / 2)
        return max(1, int(max(0.0, seconds - self.base_s) / max(token_s, 1e-9)))

    def measure(
        self, run: Callable[[int], None], first: dict[int, float], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Measure steps of growing size, each size twice and a decode more often, if ``MEASURE_S`` seconds suffice.

        The fastest run of each size counts, because a machine is often busy with other work during a start.

        Args:
            run: computes a number of tokens, in prompts as long as possible, and waits for them.
            first: seconds of the first run of some sizes, which may include compilation; used as an upper bound for
                sizes that there is no time to run again.
            clock: returns seconds.
        """
        took: dict[int, float] = {}
        spent, before = 0.0, (1, 0.0)

        def time_all(sizes: Sequence[int], until_s: float) -> None:
            nonlocal spent, before
            for tokens in sizes:
                if spent + before[1] * tokens / before[0] > until_s:
                    return
                begin = clock()
                run(tokens)
                seconds = clock() - begin
                took[tokens] = min(seconds, took.get(tokens, seconds))
                spent, before = spent + seconds, (tokens, took[tokens])

        time_all(MEASURE_SIZES[:1] * MEASURE_DECODES, MEASURE_S / 3)
        time_all(MEASURE_SIZES[1:] + MEASURE_SIZES, MEASURE_S)
        if max(took, default=0) < ENOUGH:
            took = {**first, **took}
        self.base_s = took[min(took)]
        most = max(took)
        # If the base step happened to be slow, tokens must not look free.
        seconds = max(took[most] - self.base_s, took[most] / 4)
        self.token_s = seconds / (most * self._cost(min(most, self._max_model_len) / 2))
        self.token_cost = self.token_s / self.base_s

    def observe(self, step: Step, seconds: float) -> None:
        """Update the part of the estimate that dominates this step with the seconds that the step took."""
        work = self._work(step)
        if step.prompt_tokens > step.decode_tokens and self.token_s * work >= self.base_s:
            self.token_s = _average(self.token_s, max(0.0, seconds - self.base_s) / work)
        elif work:
            self.base_s = _average(self.base_s, max(0.0, seconds - self.token_s * work))

    def _cost(self, context: float) -> float:
        """Returns the cost of a token with ``context`` tokens before it, relative to a token without context."""
        return 1 + context / self._even_context

    def _work(self, step: Step) -> float:
        """Returns a step's cost, in tokens without context; cached for the last step."""
        last, work = self._last
        if last is not step:
            work = sum(entry.num_tokens * self._cost(entry.start + entry.num_tokens / 2) for entry in step.entries)
            self._last = step, work
        return work


def too_slow(name: str, decode_s: float) -> tuple[Choice, ...]:
    """Returns a notice for a model whose answers are too slow to watch; nothing for other models."""
    if decode_s * WATCHABLE <= 1:
        return ()
    rate, faster = f"{1 / decode_s:.1f} tokens/s", "" if name == EMBEDDED else f": --model {EMBEDDED} is faster"
    notice = f"answers come at {rate} on this machine, too slow to watch{faster}"
    return (Choice("one answer", rate, "measured at the start", notice),)


def even_context(loaded: LoadedModel) -> float:
    """Returns the number of tokens of context at which attention takes as many multiplications as the weights."""
    heads = getattr(loaded.config.get_text_config(), "num_attention_heads", None)
    in_attention = 0
    for shape in loaded.kv_shapes.values():
        in_attention += (heads or shape.num_kv_heads) * (shape.k_dim + shape.v_dim)
    return max(1.0, loaded.weight_bytes / loaded.dtype.itemsize / max(1, in_attention))


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _average(old: float, new: float) -> float:
    new = min(new, _MAX_FACTOR * old) if old > 0 else new
    return old + (_SLOWER if new > old else _FASTER) * (new - old)
