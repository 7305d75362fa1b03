"""A model without numbers: it stores in every KV slot the tokens that led there, and checks every read.

Whatever the scheduler does with blocks (sharing, copying, evicting, preempting), a request must read exactly the
history of its own tokens. Its next token is a function of that history, so outputs can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from roseplay.config import Knobs, SamplingParams
from roseplay.core.cache_events import CacheLog
from roseplay.core.request import Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step, StepResult, TokenLogprobs

BLOCK_SIZE = 4
VOCABULARY = 50


def next_token(history: tuple[int, ...], seed: int = 0) -> int:
    """The token that a request with ``seed`` draws after ``history``; never 0."""
    return 1 + hash((seed, history)) % (VOCABULARY - 1)


def expected_output(prompt: Iterable[int], count: int, seed: int = 0) -> list[int]:
    tokens = list(prompt)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tuple(tokens), seed))
    return tokens[start:]


class CheckedModel:
    """Executes steps on slots that remember histories, and counts every token that was computed."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[list[tuple[int, ...] | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.host: dict[int, list[tuple[int, ...] | None]] = {}
        self.saved: dict[int, tuple[int, ...]] = {}
        self.computed_tokens = 0
        self.computed_prompt_tokens = 0
        self.fail_on_step: int | None = None

    def execute(self, step: Step) -> StepResult:
        if step.step_id == self.fail_on_step:
            raise RuntimeError("the model failed")
        for key in step.dropped_logits:
            self.saved.pop(key, None)
        for block, host_block in step.swapped_out:
            self.host[host_block] = list(self.slots[block])
        for host_block, block in step.swapped_in:
            self.slots[block] = list(self.host[host_block])
        copied = [list(self.slots[source]) for source, _ in step.copies]
        for (_, destination), content in zip(step.copies, copied, strict=True):
            self.slots[destination] = content
        self._append(step)
        self._attend(step)
        for entry in step.entries:
            if entry.save_logits_key is not None:
                self.saved[entry.save_logits_key] = self._last_history(entry)
        result = StepResult([self._sample(step, entry) for entry in step.entries], [None] * len(step.entries))
        for index, entry in enumerate(step.entries):
            if entry.draft:
                result.after_draft[index] = [(self._after(entry, n), None) for n in range(1, len(entry.draft) + 1)]
        for index, positions in step.prompt_logprobs.items():
            result.prompt_logprobs[index] = [TokenLogprobs(0.0, []) for _ in positions]
        return result

    def _append(self, step: Step) -> None:
        written = set()
        for entry in step.entries:
            tokens = [*entry.request.token_ids, *entry.draft]
            for position in range(entry.start, entry.start + entry.num_tokens):
                index, offset = divmod(position, self.block_size)
                block = entry.request.block_table[index]
                assert block != 0, "block 0 is never handed out"
                assert (block, offset) not in written, "two requests write one slot in one step"
                written.add((block, offset))
                self.slots[block][offset] = tuple(tokens[: position + 1])
            self.computed_tokens += entry.num_tokens
            self.computed_prompt_tokens += entry.num_prompt_tokens

    def _attend(self, step: Step) -> None:
        for entry in step.entries:
            tokens = [*entry.request.token_ids, *entry.draft]
            for position in range(entry.start + entry.num_tokens):
                index, offset = divmod(position, self.block_size)
                found = self.slots[entry.request.block_table[index]][offset]
                assert found == tuple(tokens[: position + 1]), f"{entry.request} reads another history at {position}"

    def _last_history(self, entry: Any) -> tuple[int, ...]:
        assert entry.num_tokens > 0
        return tuple(entry.request.token_ids[: entry.start + entry.num_tokens])

    def _after(self, entry: Any, count: int) -> int:
        """The token drawn after ``count`` tokens of the entry's draft."""
        return next_token((*entry.request.token_ids, *entry.draft[:count]), entry.request.seed)

    def _sample(self, step: Step, entry: Any) -> int | None:
        if not entry.samples:
            return None
        assert (entry.logits_entry is None) != (entry.logits_key is None)
        if entry.logits_entry is not None:
            history = self._last_history(step.entries[entry.logits_entry])
        else:
            history = self.saved[entry.logits_key]
        assert history == tuple(entry.request.token_ids), f"{entry.request} draws from another history's logits"
        return next_token(history, entry.request.seed)


def check_blocks(scheduler: Scheduler) -> None:
    """Every block is in exactly one state, and every reference is an entry in a live request's block table."""
    pool = scheduler.pool
    assert pool.num_free + pool.num_cached + pool.num_active + pool.num_shared == pool.num_usable
    assert min(pool.num_free, pool.num_cached, pool.num_active, pool.num_shared) >= 0
    held = Counter(block for request in scheduler.requests.values() for block in request.block_table)
    assert held[0] == 0
    assert [held[block] for block in range(pool.num_blocks)] == pool.ref_counts
    assert pool.num_shared == sum(1 for count in held.values() if count > 1)
    cached = [block for block in range(pool.num_blocks) if not held[block] and pool.is_findable(block)]
    assert pool.num_cached == len(cached)


class Rig:
    """A scheduler and a checked model, stepped by hand."""

    def __init__(
        self,
        *,
        num_blocks: int = 200,
        block_size: int = BLOCK_SIZE,
        max_model_len: int = 10_000,
        max_saved_logits: int = 1000,
        num_host_blocks: int = 0,
        cache_log: CacheLog | None = None,
        **knobs: Any,
    ) -> None:
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_saved_logits=max_saved_logits,
            num_host_blocks=num_host_blocks,
            cache_log=cache_log,
            knobs=Knobs(**knobs),
        )
        self.model = CheckedModel(num_blocks, block_size)
        self.submitted: dict[int, Request] = {}
        self.steps: list[Step] = []

    def add(self, prompt: Iterable[int], max_new_tokens: int = 4, **kwargs: Any) -> Request:
        sampling = kwargs.pop("sampling", None) or SamplingParams(max_new_tokens=max_new_tokens)
        request = Request(len(self.submitted), list(prompt), sampling, **kwargs)
        self.scheduler.add(request)
        self.submitted[request.request_id] = request
        return request

    def step(self) -> Step:
        step = self.scheduler.schedule()
        self.steps.append(step)
        try:
            result = self.model.execute(step)
        except RuntimeError:
            self.scheduler.fail(step)
        else:
            self.scheduler.update(step, result)
        check_blocks(self.scheduler)
        return step

    def run(self, max_steps: int = 2000) -> int:
        """Step until no work is left; returns how many prompt tokens the model computed."""
        before = self.model.computed_prompt_tokens
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return self.model.computed_prompt_tokens - before
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps: {self.scheduler.requests}")

    def output(self, request: Request) -> list[int]:
        return request.token_ids[request.num_prompt_tokens :]

    def check_outputs(self) -> None:
        """Every request that was not aborted got the tokens that the model gives it alone."""
        for request in self.submitted.values():
            if request.finish_reason in ("stop", "length"):
                prompt = request.token_ids[: request.num_prompt_tokens]
                assert self.output(request) == expected_output(prompt, request.num_output_tokens, request.seed)
