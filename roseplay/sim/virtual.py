"""Plays traffic through the real scheduler in virtual time: nothing waits, and equal steps are skipped.

The loop is that of ``roseplay.engine.worker``, without telemetry and messages. Requests arrive at their times, whatever
the load, or, from a number of clients, one after the other. Runs of steps that only decode are applied at once (``DecodeRun``), which gives exactly the times of single
steps.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from roseplay.clock import VirtualClock
from roseplay.config import Knobs, SamplingParams
from roseplay.core.ahead import is_last
from roseplay.core.cache_entries import SAVED_LOGITS_BYTES
from roseplay.core.decode_run import DecodeRun, last_tokens_unknown
from roseplay.core.request import Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step
from roseplay.sim.cost import StepLoad, padded
from roseplay.sim.outcome import RequestTimes, Simulated, SimulatedRequest
from roseplay.sim.runner import SimulatedRunner, SimulatedStep


class VirtualServer:
    """One simulated engine in virtual time.

    Args:
        runner: its durations and its pool.
        clock: the runner's clock.
        knobs: of the scheduler; slow motion has no effect.
        skip: whether runs of decode steps are applied at once; the outcome is the same.

    Raises:
        ValueError: a knob cannot be simulated.
    """

    def __init__(
        self, runner: SimulatedRunner, clock: VirtualClock, knobs: Knobs | None = None, *, skip: bool = True
    ) -> None:
        self._runner, self._clock, self._skips = runner, clock, skip
        self._knobs = knobs or Knobs()
        runner.info().check_knobs(self._knobs)
        self._ahead = self._knobs.overlap
        self.scheduler = Scheduler(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_model_len=runner.max_model_len,
            max_saved_logits=max(1, SAVED_LOGITS_BYTES // runner.logits_bytes),
            knobs=self._knobs,
            token_limit=runner.memory_limit,
            step_limit=runner.max_step_tokens,
        )
        self._flying: tuple[Step, SimulatedStep] | None = None
        self._landed: Step | None = None  # the last step, if none is in flight
        self._traffic: Sequence[SimulatedRequest] = ()
        self._due_ns: deque[int] = deque()  # arrivals that are known
        self._clients: int | None = None
        self._times: list[RequestTimes] = []
        self._ends = array("q")
        self._freed = False  # whether a request ended in the step that landed last
        self._skipped = self._tokens = self._busiest = self._peak_blocks = 0

    def play(self, traffic: Sequence[SimulatedRequest], clients: int | None = None) -> Simulated:
        """Play requests until all have been answered.

        Args:
            traffic: in order of arrival.
            clients: if given, as many send one request after the other, each as soon as its last was answered.
        """
        self._traffic, scheduler, clock = traffic, self.scheduler, self._clock
        self._clients = clients
        self._due_ns.extend([0] * clients if clients else [round(one.at_s * 1e9) for one in traffic])
        self._admit(clock.now_ns())
        while True:
            if scheduler.has_work:
                if not (self._skips and self._skip()):
                    self._step()
            elif self._flying is not None:
                self._land()
            elif (arrival_ns := self._next_arrival_ns) is not None:
                clock.advance_to(arrival_ns)
            else:
                break
            self._admit(clock.now_ns())
        ends = np.frombuffer(self._ends, np.int64)
        return Simulated(
            self._times,
            ends,
            skipped=self._skipped,
            tokens=self._tokens,
            busiest=self._busiest,
            peak_blocks=self._peak_blocks,
            num_blocks=scheduler.pool.num_usable,
        )

    @property
    def _next_arrival_ns(self) -> int | None:
        return self._due_ns[0] if self._due_ns and len(self._times) < len(self._traffic) else None

    def _admit(self, until_ns: int) -> None:
        """Enqueue the requests that have arrived by then."""
        while (arrived_ns := self._next_arrival_ns) is not None and arrived_ns <= until_ns:
            self._due_ns.popleft()
            number = len(self._times)
            _, token_ids, answer_tokens = self._traffic[number]
            times = RequestTimes(arrived_ns, len(token_ids))
            self._times.append(times)
            params = SamplingParams(max_new_tokens=answer_tokens, ignore_eos=True)
            try:
                self.scheduler.add(Request(number, list(token_ids), params))
            except ValueError as error:
                times.refused = str(error)
                self._note_ended(1)

    def _note_ended(self, count: int) -> None:
        """Let as many clients send their next request."""
        if self._clients is not None:
            self._due_ns.extend([self._clock.now_ns()] * count)

    # -- single steps, as in the worker's loop

    def _step(self) -> None:
        """Launch the next step, then finish the previous one; without overlap, launch and finish the same one."""
        flying = self._flying
        if flying is not None:
            if not self.scheduler.can_run_ahead(flying[0]):
                self._land()
                return
            self.scheduler.assume(flying[0])
        step = self.scheduler.schedule()
        launched = None
        if flying is None or step.entries or step.dropped_logits:
            launched = (step, self._runner.launch(step))
        if flying is not None:
            self._land()
        self._flying = launched
        if not self._ahead:
            self._land()

    def _land(self) -> None:
        """Wait for the step in flight and apply its result."""
        assert self._flying is not None
        (step, launched), self._flying = self._flying, None
        live = len(self.scheduler.requests)
        new_tokens = self.scheduler.update(step, launched.result())
        ended = live - len(self.scheduler.requests)
        self._freed = ended > 0
        self._note_ended(ended)
        number = len(self._ends)
        self._ends.append(self._clock.now_ns())
        for entry, _ in new_tokens:
            self._times[entry.request.request_id].took(number)
        for request_id in step.preempted:
            self._times[request_id].preemptions += 1
        for entry in step.entries if step.admitted else ():
            if not entry.request.num_preemptions:
                self._times[entry.request.request_id].cached_tokens = entry.request.num_cached_tokens
        self._tokens += len(new_tokens)
        self._landed = step
        self._note_use()

    def _note_use(self) -> None:
        pool = self.scheduler.pool
        self._busiest = max(self._busiest, len(self.scheduler.running))
        self._peak_blocks = max(self._peak_blocks, pool.num_usable - pool.num_available)

    # -- runs of steps

    def _skip(self) -> bool:
        """Apply the decode steps that follow at once; returns whether anything was done.

        With overlap, a step is scheduled when the one before it begins: what arrives during that one does not enter it.
        So the step after the run is launched here, before later arrivals are admitted.
        """
        if self._freed and self.scheduler.waiting:  # after the last step was scheduled: the next one may admit
            return False
        if self._ahead:
            if self._flying is None or not self._is_steady(self._flying[0]):
                return False
            self._land()
        if self._landed is None:
            return False
        run = DecodeRun.after(self.scheduler, self._landed, ahead=self._ahead, through_ends=self._clients is None)
        if run is not None:
            begun_ns = self._clock.now_ns()
            ends = self._ends_of(run)
            steps = run.without_end(self._steps_before_arrival(begun_ns, ends))
            run = run if steps else None
        if run is not None:
            self._apply(run, ends[:steps])
            if self._ahead:
                self._admit(int(ends[steps - 2]) if steps > 1 else begun_ns)
        if self._ahead:
            drawn = [entry.request for entry in self._landed.entries] if run is None else list(self.scheduler.running)
            with last_tokens_unknown(self.scheduler, drawn):
                self._step()
        return self._ahead or run is not None

    def _is_steady(self, step: Step) -> bool:
        """Returns whether the next step is the same if it is scheduled only after this one has ended."""
        ends = any(not entry.samples or is_last(entry.request) for entry in step.entries)
        return not ends and self.scheduler.can_run_ahead(step)

    def _steps_before_arrival(self, begun_ns: int, ends: np.ndarray) -> int:
        """Returns how many of the steps are scheduled before the next arrival can enter one."""
        arrival_ns = self._next_arrival_ns
        if arrival_ns is None:
            return len(ends)
        if begun_ns >= arrival_ns:  # only with overlap: it arrived during the step before
            return min(1, len(ends))
        return min(len(ends), int(np.searchsorted(ends, arrival_ns)) + 1 + self._ahead)

    def _ends_of(self, run: DecodeRun) -> np.ndarray:
        """Returns ``[steps]`` int64: when each step of the run would end, until a little after the next arrival."""
        parts, most = run.parts, run.most
        count, read = len(parts), sum(part.start for part in parts)
        if (arrival_ns := self._next_arrival_ns) is not None:
            first_s = self._runner.cost.seconds(self._load(count, read + count))
            most = min(most, max(0, int((arrival_ns - self._clock.now_ns()) / 1e9 / first_s)) + 2)
        seconds, done = [], 0
        for until in [*sorted({part.remaining for part in parts if part.remaining < most}), most]:
            if done:
                going = [part for part in parts if part.remaining > done]
                count, read = len(going), sum(part.start for part in going)
            tokens = read + count * np.arange(done + 1, until + 1)
            seconds.append(self._runner.cost.seconds(self._load(count, tokens)))
            done = until
        took_ns = np.rint(np.concatenate(seconds) * 1e9).astype(np.int64)
        return self._clock.now_ns() + np.cumsum(took_ns)

    def _load(self, requests: int, kv_tokens: Any) -> StepLoad:
        sequences = padded(requests) if self._knobs.cuda_graphs else requests
        return StepLoad(sequences, requests, 0, kv_tokens, 0)

    def _apply(self, run: DecodeRun, ends: np.ndarray) -> None:
        number, steps = len(self._ends), len(ends)
        run.apply(steps, self._runner.tokens)
        self._ends.frombytes(ends.tobytes())
        for request, _, remaining in run.parts:
            count = min(steps, remaining)
            self._times[request.request_id].took(number, count)
            self._tokens += count
        self._skipped += steps
        self._clock.advance_to(int(ends[-1]))
        self._note_use()
