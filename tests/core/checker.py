"""Operations on a scheduler with a known outcome: an oracle says which tokens each request must get and when it ends.

An operation is what the engine's loop may do: submit, abort, launch a step (ahead of one in flight or not), take its
outcome, change knobs, clear the cache; a step may fail at its launch or later, or find no memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from roseplay.config import Knobs, SamplingParams
from roseplay.core.budget import RequestTooLargeError
from roseplay.core.cache_events import CacheLog
from roseplay.core.request import FinishReason, Request, RequestStatus
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step, StepEntry, StepResult, TokenLogprobs
from tests.core.device import WHY, Device, Guesses, Truth
from tests.core.explanations import Explanations
from tests.core.invariants import Invariants

LAUNCHED, BROKEN_AT_LAUNCH, BROKEN_LATER, NO_MEMORY = "ok", "error at launch", "error later", "no memory"
NAN_LOGITS = "nan"
FAILURES = (BROKEN_AT_LAUNCH, BROKEN_LATER, NO_MEMORY, NAN_LOGITS)


@dataclass
class Flight:
    """A step whose outcome the scheduler does not know yet; ``result`` is None if the step fails."""

    step: Step
    result: StepResult | None
    blocks: set[int]


class Checker:
    """A scheduler, a simulated device and the oracle. All public methods but ``check`` and ``drain`` are operations."""

    def __init__(
        self,
        *,
        num_blocks: int = 40,
        block_size: int = 4,
        max_model_len: int = 10_000,
        max_saved_logits: int = 100,
        num_state_slots: int = 0,
        num_state_snapshots: int = 0,
        state_interval: int = 0,
        num_host_blocks: int = 0,
        **knobs: Any,
    ) -> None:
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_saved_logits=max_saved_logits,
            knobs=Knobs(**knobs),
            num_state_slots=num_state_slots,
            num_state_snapshots=num_state_snapshots if num_state_slots else 0,
            state_interval=state_interval,
            num_host_blocks=0 if num_state_slots else num_host_blocks,
            cache_log=CacheLog(),
        )
        self.device = Device(num_blocks, block_size)
        self.max_saved_logits = max_saved_logits
        self.operations = 0
        self.log: deque[str] = deque(maxlen=40)
        self.flying: Flight | None = None
        self.met = Counter[str]()  # how often random operations met what they should
        self.most_tokens: int | None = None
        self._live: dict[int, Truth] = {}
        self._next_id = 0
        self._computed: dict[int, int] = {}  # prompt tokens computed for each request that has never lost its blocks
        self._prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        self._invariants = Invariants(self.scheduler, self.device, self._live)
        self.explanations = Explanations(self.scheduler, self.device.truths)

    @property
    def num_live(self) -> int:
        return len(self._live)

    # -- operations

    def submit(
        self, prompt: Iterable[int], max_new_tokens: int, seed: int = 0, eos: Iterable[int] = (), **sampling: Any
    ) -> Request | None:
        """Submit a request, which must be refused (None is returned) exactly when it can never fit."""
        scheduler = self.scheduler
        params = SamplingParams(max_new_tokens=max_new_tokens, **sampling)
        request = Request(self._next_id, list(prompt), params, eos_token_ids=frozenset(eos), seed=seed)
        about = "".join(f", {name}={value!r}" for name, value in sampling.items())
        self._count(f"submit({request.token_ids}, {max_new_tokens}, {seed=}, eos={sorted(eos)}{about})")
        total = request.num_prompt_tokens + max_new_tokens
        if total > scheduler.max_model_len or total > scheduler.pool.num_usable * scheduler.block_size:
            with pytest.raises(RequestTooLargeError):
                scheduler.add(request)
            assert request.request_id not in scheduler.requests
            self.check()
            return None
        scheduler.add(request)
        self._next_id += 1
        truth = Truth(self.device.histories, request)
        request.lookup = Guesses(truth, right=(0.0, 0.6, 0.9, 1.0)[self._next_id % 4])
        self._live[request.request_id] = self.device.truths[request.request_id] = truth
        self._computed[request.request_id] = 0
        self._prompt_logprobs[request.request_id] = []
        self.check()
        return request

    def end(self, which: int, reason: FinishReason = FinishReason.ABORT) -> None:
        """End the live request with index ``which`` (modulo their number); if none is live, try an unknown id."""
        if self._live:
            self.end_request(list(self._live.values())[which % len(self._live)].request, reason)
        else:
            assert self.scheduler.end(which, reason) is None

    def end_request(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        self._count(f"end_request({request}, {reason.value!r})")
        assert self.scheduler.end(request.request_id, reason) is request
        assert self.scheduler.end(request.request_id, reason) is None
        self._ended(request, reason)
        self.check()

    def set_knobs(self, **changes: Any) -> None:
        self._count(f"set_knobs({changes})")
        self.scheduler.set_knobs(self.scheduler.knobs.changed(changes))
        self.check()

    def clear_cache(self) -> None:
        self._count("clear_cache()")
        self.scheduler.clear_cache()
        assert self.scheduler.pool.num_cached == 0
        assert not self.scheduler.cache._nodes and not self.scheduler.cache._tails, "an entry stays forever"
        assert not self.scheduler.cache.states.num_kept, "a state stays forever"
        self.check()

    def set_memory(self, most_tokens: int | None) -> None:
        """From now on, the device has memory for steps of at most ``most_tokens`` tokens."""
        self._count(f"set_memory({most_tokens})")
        self.most_tokens, self.scheduler.token_limit = most_tokens, None

    def set_step_limit(self, step_limit: int | None) -> None:
        """From now on, a step of more than ``step_limit`` tokens takes too long."""
        self._count(f"set_step_limit({step_limit})")
        self.scheduler.step_limit = step_limit

    def set_token_cost(self, token_cost: float) -> None:
        """From now on, a further token takes this share of a step of one."""
        self._count(f"set_token_cost({token_cost})")
        self.scheduler.token_cost = token_cost

    def step(self, outcome: str = LAUNCHED, entry: int | None = None) -> None:
        """A step from its launch to its outcome, with no other step in flight."""
        self.land()
        self.launch(outcome, entry)
        self.land()

    def launch(self, outcome: str = LAUNCHED, entry: int | None = None) -> None:
        """Launch a step. One in flight lands before it if the next step cannot be made earlier, otherwise after it.

        With ``NAN_LOGITS``, the entry with index ``entry`` computes NaN, or by default any that computes something.
        """
        self._count(f"launch({outcome!r})")
        self._launch(outcome, entry)
        self.check()

    def land(self) -> None:
        """Take the outcome of the step in flight, if there is one."""
        if self.flying is not None:
            self._count("land()")
            self._land()
            self.check()

    def drain(self) -> None:
        """Serve all requests; then every block must be available, and no more logits saved than allowed."""
        scheduler = self.scheduler
        self.set_memory(None)
        limit = 100 + sum(2 * len(truth.tokens) for truth in self._live.values()) * (1 + len(self._live))
        while scheduler.has_work or self.flying is not None:
            self.launch()
            limit -= 1
            assert limit > 0, f"not served: {scheduler.requests}"
        pool = scheduler.pool
        assert not self._live
        assert pool.num_available == pool.num_usable
        assert scheduler.slots.num_free == scheduler.slots.num_slots
        assert scheduler.host.num_free == scheduler.host.num_blocks, "a host block is lost"
        self.device.execute(scheduler.schedule())  # carries the most recently dropped keys
        assert len(self.device.saved) <= self.max_saved_logits
        self.clear_cache()
        self.device.execute(scheduler.schedule())
        assert not self.device.saved
        assert pool.num_free == pool.num_usable

    def check(self) -> None:
        """Check what must hold between any two operations."""
        blocks = self.flying.blocks if self.flying is not None else None
        self._invariants.check(blocks, thorough=self.operations % 16 == 0)

    # -- steps

    def _count(self, operation: str) -> None:
        self.operations += 1
        self.log.append(operation)

    def _launch(self, outcome: str, entry: int | None) -> None:
        scheduler, before = self.scheduler, self.flying
        if before is not None:
            if not scheduler.can_run_ahead(before.step):
                self._land()
                return
            scheduler.assume(before.step)
            self.met["ran ahead"] += 1
        if not scheduler.has_work:
            return
        step = self._schedule()
        if before is not None and not (step.entries or step.dropped_logits):
            self._land()
            return
        if self.most_tokens is not None and step.prompt_tokens + step.decode_tokens > self.most_tokens:
            outcome = NO_MEMORY
        self.met[f"{outcome}{', ahead' if before is not None else ''}"] += 1
        if outcome in (BROKEN_AT_LAUNCH, NO_MEMORY):
            self._launch_failed(step, outcome)
            return
        flight = self._execute(step, before, outcome, entry)
        if before is None:
            self.flying = flight
        else:
            self._land(flight)

    def _schedule(self) -> Step:
        running = {request.request_id for request in self.scheduler.running}
        step = self.scheduler.schedule()
        assert self.flying is None or not step.preempted, "a request lost blocks that a step in flight writes into"
        self._invariants.check_step(step, running)
        self.explanations.check_step(step)
        for what in ("preempted", "copies", "swapped_in", "states_before", "dropped_logits"):
            self.met[what] += len(getattr(step, what))
        for entry in step.entries:
            if entry.request.request_id in self._computed:
                self._computed[entry.request.request_id] += entry.num_prompt_tokens
        for number in step.preempted:
            self._computed.pop(number, None)
        return step

    def _execute(self, step: Step, before: Flight | None, outcome: str, nan: int | None) -> Flight:
        blocks = {
            entry.request.block_table[position // self.device.block_size]
            for entry in step.entries
            for position in range(entry.start, entry.start + entry.num_tokens)
        }
        broken = outcome == BROKEN_LATER or (before is not None and before.result is None)
        if broken:
            self.device.spoil(step)
        computing = [index for index, entry in enumerate(step.entries) if entry.num_tokens]
        if outcome == NAN_LOGITS and nan is None and computing:
            nan = computing[step.step_id % len(computing)]
        return Flight(step, None if broken else self.device.execute(step, nan), blocks)

    def _land(self, behind: Flight | None = None) -> None:
        flight, self.flying = self.flying, behind
        assert flight is not None
        if flight.result is None:
            self.flying = None  # a step launched behind one that failed is lost with it
            self._fail(flight.step, *([behind.step] if behind is not None else []))
            return
        known = {number: truth.request.num_known_tokens for number, truth in self._live.items()}
        errors = flight.result.errors
        spoiled = [block for index in errors for block in flight.step.entries[index].request.block_table]
        broken = {flight.step.entries[index].request.request_id for index in errors}
        told = self.scheduler.update(flight.step, flight.result)
        for index, logprobs in flight.result.prompt_logprobs.items():
            self._prompt_logprobs[flight.step.entries[index].request.request_id] += logprobs
        ended = [flight.step.entries[index].request for index in errors]
        ended = [request for request in ended if request.request_id in known]
        assert self.scheduler.take_errors() == [(request, WHY) for request in ended]
        assert not any(self.scheduler.pool.is_findable(block) for block in spoiled), "a block with NaN can be found"
        assert not any(state.request_id in broken for state in self.scheduler.cache.states.kept), "a NaN state is kept"
        for request in ended:
            self._ended(request, FinishReason.ERROR)
        expected = [
            (entry.request.request_id, token)
            for entry, token in zip(flight.step.entries, flight.result.token_ids, strict=True)
            if token is not None and entry.request.request_id in known
            for token in self._confirmed(entry, known[entry.request.request_id])
        ]
        assert [(entry.request.request_id, token) for entry, token in told] == expected
        self.met["accepted"] += flight.step.accepted_tokens
        assert flight.step.accepted_tokens == len(expected) - len(dict(expected))
        for number, (entry, token) in enumerate(told):
            request_id = entry.request.request_id
            is_last = all(other.request.request_id != request_id for other, _ in told[number + 1 :])
            self._took(entry.request, token, known[request_id], is_last=is_last)
            known[request_id] += 1
        for entry, _ in told:
            request, ended = entry.request, entry.request.status is RequestStatus.FINISHED
            assert ended or not entry.draft or request.num_computed_tokens == request.num_tokens - 1
        self._invariants.watch_the_oldest()

    def _confirmed(self, entry: StepEntry, known: int) -> list[int]:
        """The tokens that the entry's request must get: those of its draft that are right, and one more."""
        truth = self._live[entry.request.request_id].tokens[known:]
        right = 0
        while right < min(len(entry.draft), len(truth) - 1) and entry.draft[right] == truth[right]:
            right += 1
        return truth[: right + 1]

    def _took(self, request: Request, token: int, position: int, *, is_last: bool) -> None:
        """The request has received its token at ``position``, the last one of a step or not."""
        truth = self._live[request.request_id]
        assert token == truth.tokens[position] == request.token_ids[position]
        if position == request.num_prompt_tokens:
            self._check_prompt_logprobs(truth)
        if position == request.num_prompt_tokens and request.request_id in self._computed:
            served = request.num_cached_tokens + request.num_shared_tokens
            assert self._computed[request.request_id] + served == position, "prompt tokens are counted twice or never"
        if position + 1 == len(truth.tokens):
            assert request.token_ids == truth.tokens
            self._ended(request, truth.reason)
        elif is_last:
            assert request.status is not RequestStatus.FINISHED

    def _check_prompt_logprobs(self, truth: Truth) -> None:
        """With the first token of the answer, they are complete and without duplicates."""
        request, found = truth.request, self._prompt_logprobs[truth.request.request_id]
        asked = range(1, request.num_prompt_tokens) if request.sampling.prompt_logprobs is not None else range(0)
        assert found == (truth.prompt_logprobs(asked) if asked else [])

    def _launch_failed(self, step: Step, outcome: str) -> None:
        self.device.spoil(step)
        if self.flying is not None:
            self._land()
        if outcome == NO_MEMORY:
            tokens = step.prompt_tokens + step.decode_tokens
            restarting = [entry.request.request_id for entry in step.entries if entry.request.block_table]
            if self.scheduler.shrink(step):
                assert 1 <= self.scheduler.token_limit < tokens
                for number in restarting:
                    self._restarted(number)
                return
            assert tokens <= 1
        self._fail(step)

    def _fail(self, *steps: Step) -> None:
        computing = {
            entry.request.request_id
            for step in steps
            for entry in step.entries
            if (entry.num_tokens or entry.logits_key is not None) and entry.request.request_id in self._live
        }
        ended = self.scheduler.fail(*steps)
        assert {request.request_id for request in ended} == computing
        for request in ended:
            self._ended(request, FinishReason.ERROR)
        for step in steps:
            for entry in step.entries:
                self._restarted(entry.request.request_id)

    def _restarted(self, number: int) -> None:
        truth = self._live.get(number)
        if truth is not None and number in self._computed and not truth.request.block_table:
            assert truth.request.status is RequestStatus.WAITING
            self._computed[number] = 0

    def _ended(self, request: Request, reason: FinishReason) -> None:
        truth = self._live.pop(request.request_id)
        assert request.status is RequestStatus.FINISHED
        assert request.finish_reason is reason
        assert request.request_id not in self.scheduler.requests
        assert request.token_ids == truth.tokens[: request.num_tokens], "a wrong history"
