"""Plays traffic through the real scheduler in virtual time: nothing waits, and equal steps are skipped.

The loop is that of ``roseplay.engine.worker``, without telemetry and messages. Requests arrive at their times, whatever
the load; under blocking admission one by one, each after the first token of the one before; or, from a number of
clients, each after an answer has ended. Runs of steps that only decode are applied at once (``DecodeRun``), which gives
exactly the times of single steps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roseplay.clock import VirtualClock
from roseplay.config import Knobs, SamplingParams
from roseplay.core.ahead import is_last
from roseplay.core.cache_entries import SAVED_LOGITS_BYTES
from roseplay.core.request import Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step
from roseplay.extras.simulation.arrivals import Arrivals
from roseplay.extras.simulation.cost import StepLoad
from roseplay.extras.simulation.decode_run import DecodeRun, last_tokens_unknown
from roseplay.extras.simulation.outcome import RequestTimes, Simulated, SimulatedRequest
from roseplay.extras.simulation.runner import SimulatedRunner, SimulatedStep
from roseplay.extras.simulation.step_summaries import StepSummaries


class VirtualServer:
    """One simulated engine in virtual time.

    Args:
        runner: its durations and its pool.
        clock: the runner's clock.
        knobs: of the scheduler and of admission; slow motion has no effect.
        max_waiting: most requests that may wait until they are scheduled; further ones are refused.
        skip: whether runs of decode steps are applied at once; the outcome is the same.
        records: whether the outcome has the requests themselves, and a record of each step.

    Raises:
        UnsupportedKnobError: a knob cannot be simulated.
    """

    def __init__(
        self,
        runner: SimulatedRunner,
        clock: VirtualClock,
        knobs: Knobs | None = None,
        *,
        max_waiting: int | None = None,
        skip: bool = True,
        records: bool = False,
    ) -> None:
        self._runner, self._clock, self._skips, self._records = runner, clock, skip, records
        self._max_waiting = max_waiting
        self._knobs = knobs or Knobs()
        runner.info().check_knobs(self._knobs)
        self.scheduler = Scheduler(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_model_len=runner.max_model_len,
            max_saved_logits=max(1, SAVED_LOGITS_BYTES // runner.logits_bytes),
            knobs=self._knobs,
            token_limit=runner.memory_limit,
            step_limit=runner.max_step_tokens,
        )
        self._begin((), None)

    def _begin(self, traffic: Sequence[SimulatedRequest], clients: int | None) -> None:
        knobs, start_ns = self._knobs, self._clock.now_ns()
        self._ahead = knobs.overlap and self._runner.runs_ahead
        self._flying: tuple[Step, SimulatedStep, int] | None = None  # with the time at which it was launched
        self._landed: Step | None = None  # the last step, if none is in flight
        self._landed_ns = start_ns
        self._arrivals = Arrivals(traffic, start_ns, clients, one_by_one=knobs.admission == "blocking")
        steps = StepSummaries() if self._records else None
        self._played = Simulated(num_blocks=self.scheduler.pool.num_usable, start_ns=start_ns, steps=steps)
        self._scheduled_ns: list[int] = []  # when it was known of each request that it had been scheduled
        self._ends = array("q")
        self._freed = False  # whether a request ended in the step that landed last

    def set_knobs(self, knobs: Knobs) -> None:
        """Replace the knobs, for the next ``play``; raises ``UnsupportedKnobError`` for one that cannot be simulated."""
        self._runner.info().check_knobs(knobs)
        self._knobs = knobs
        self.scheduler.set_knobs(knobs)

    @property
    def num_ended(self) -> int:
        """The number of requests that have ended in this ``play``; may be read by another thread."""
        return len(self._played.requests) - len(self.scheduler.requests)

    def play(
        self,
        traffic: Sequence[SimulatedRequest],
        clients: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Simulated:
        """Play requests until all have been answered. The prefix cache is as the last ``play`` has left it.

        Args:
            traffic: in order of arrival.
            clients: if given, as many send one request after the other, each as soon as its last was answered.
            cancelled: asked before each step; if it is true, the outcome is that until then, and the server is used up.
        """
        self._begin(traffic, clients)
        scheduler, clock = self.scheduler, self._clock
        self._admit(clock.now_ns())
        while not cancelled():
            if scheduler.has_work:
                if not (self._skips and self._skip()):
                    self._step()
            elif self._flying is not None:
                self._land()
            elif (arrival_ns := self._arrivals.next_ns) is not None:
                clock.advance_to(arrival_ns)
            else:
                break
            self._admit(clock.now_ns())
        self._played.ends_ns = np.frombuffer(self._ends, np.int64)
        return self._played

    def _admit(self, until_ns: int) -> None:
        """Enqueue the requests that have arrived by then."""
        while (arrived_ns := self._arrivals.next_ns) is not None and arrived_ns <= until_ns:
            number = len(self._played.requests)
            sent = self._arrivals.take()
            times = RequestTimes(arrived_ns, len(sent.token_ids))
            self._played.requests.append(times)
            params = SamplingParams(
                max_new_tokens=sent.answer_tokens, ignore_eos=True, tenant=sent.tenant, priority=sent.priority
            )
            request = Request(number, list(sent.token_ids), params)
            if self._records:
                self._played.served.append(request)
            try:
                self._check_room(number, arrived_ns)
                self.scheduler.add(request)
            except ValueError as error:
                times.refused = str(error)
                self._arrivals.note_ended(1, arrived_ns)
                self._arrivals.note_first_token(arrived_ns)

    def _check_room(self, number: int, now_ns: int) -> None:
        """Raises ``ValueError`` if as many requests wait as may; ``number`` have arrived before."""
        most = self._max_waiting
        if most is None or number < most:
            return
        refused = sum(bool(times.refused) for times in self._played.requests[:number])
        if number - refused - bisect_right(self._scheduled_ns, now_ns) >= most:
            raise ValueError(f"{most} requests are already waiting: try again later")

    # -- single steps, as in the worker's loop

    def _step(self) -> None:
        """Launch the next step, then finish the previous one; without overlap, launch and finish the same one."""
        flying = self._flying
        if flying is not None:
            if not self.scheduler.can_run_ahead(flying[0]):
                self._land()
                return
            self.scheduler.assume(flying[0])
        begun_ns = self._clock.now_ns()
        step = self.scheduler.schedule()
        self._played.busiest = max(self._played.busiest, len(self.scheduler.running))
        self._note_blocks()
        launched = None
        if flying is None or step.entries or step.dropped_logits:
            launched = (step, self._runner.launch(step), begun_ns)
        if flying is not None:
            self._land()
        self._flying = launched
        if not self._ahead:
            self._land()

    def _land(self) -> None:
        """Wait for the step in flight and apply its result; then note the state."""
        self._end_step()
        self._note_state()

    def _end_step(self) -> None:
        assert self._flying is not None
        (step, launched, begun_ns), self._flying = self._flying, None
        live = len(self.scheduler.requests)
        new_tokens = self.scheduler.update(step, launched.result())
        ended = live - len(self.scheduler.requests)
        self._freed = ended > 0
        number, now_ns = len(self._ends), self._clock.now_ns()
        self._arrivals.note_ended(ended, now_ns)
        self._ends.append(now_ns)
        begun_ns, self._landed_ns = max(begun_ns, self._landed_ns), now_ns
        for entry, _ in new_tokens:
            times = self._played.requests[entry.request.request_id]
            if not times.spans:
                self._arrivals.note_first_token(now_ns)
            times.took(number)
        for request_id in step.preempted:
            self._played.requests[request_id].preemptions += 1
        for request_id in step.admitted:
            if self._played.requests[request_id].scheduled_ns is None:
                self._played.requests[request_id].scheduled_ns = begun_ns
                self._scheduled_ns.append(now_ns)
        for entry in step.entries if step.admitted else ():
            if not entry.request.num_preemptions:
                self._played.requests[entry.request.request_id].cached_tokens = entry.request.num_cached_tokens
        if self._played.steps is not None and step.entries:
            self._played.steps.add(begun_ns, now_ns, step.prompt_tokens, step.decode_tokens)
        self._played.tokens += len(new_tokens)
        self._landed = step

    def _note_state(self) -> None:
        if self._played.steps is not None:
            self._played.steps.add_state(len(self.scheduler.running), len(self.scheduler.waiting), self._blocks_held)

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
            self._end_step()
        if self._landed is None:
            return False
        run = DecodeRun.after(
            self.scheduler, self._landed, ahead=self._ahead, through_ends=not self._arrivals.depends_on_ends
        )
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
            self._note_state()  # after the next step has been scheduled, as with single steps
        return self._ahead or run is not None

    def _is_steady(self, step: Step) -> bool:
        """Returns whether the next step is the same if it is scheduled only after this one has ended."""
        ends = any(not entry.samples or is_last(entry.request) for entry in step.entries)
        return not ends and self.scheduler.can_run_ahead(step)

    def _steps_before_arrival(self, begun_ns: int, ends: np.ndarray) -> int:
        """Returns how many of the steps are scheduled before the next arrival can enter one."""
        arrival_ns = self._arrivals.next_ns
        if arrival_ns is None:
            return len(ends)
        if begun_ns >= arrival_ns:  # only with overlap: it arrived during the step before
            return min(1, len(ends))
        return min(len(ends), int(np.searchsorted(ends, arrival_ns)) + 1 + self._ahead)

    def _ends_of(self, run: DecodeRun) -> np.ndarray:
        """Returns ``[steps]`` int64: when each step of the run would end, until a little after the next arrival."""
        parts, most = run.parts, run.most
        count, read = len(parts), sum(part.start for part in parts)
        if (arrival_ns := self._arrivals.next_ns) is not None:
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
        return self._runner.cost.decodes(requests, kv_tokens, pads=self._knobs.cuda_graphs)

    def _apply(self, run: DecodeRun, ends: np.ndarray) -> None:
        number, steps, begun_ns = len(self._ends), len(ends), self._clock.now_ns()
        waiting, held = len(self.scheduler.waiting), self._blocks_held
        changes: list[tuple[int, int]] = []  # (step of the run, blocks held from it on)
        run.apply(steps, self._runner.tokens, lambda step: changes.append((step, self._note_blocks())))
        self._ends.frombytes(ends.tobytes())
        for request, _, remaining in run.parts:
            count = min(steps, remaining)
            self._played.requests[request.request_id].took(number, count)
            self._played.tokens += count
        self._played.skipped += steps
        self._clock.advance_to(int(ends[-1]))
        self._landed_ns = int(ends[-1])
        if self._played.steps is not None:
            blocks = np.full(steps, held)
            for step, held in changes:
                blocks[step:] = held
            lasts = np.array([part.remaining for part in run.parts])
            self._played.steps.add_run(begun_ns, ends, lasts, waiting, blocks, ahead=self._ahead)
        if not self._ahead:
            self._note_state()

    def _note_blocks(self) -> int:
        """Returns the blocks that requests hold now, and counts them for the peak."""
        held = self._blocks_held
        self._played.peak_blocks = max(self._played.peak_blocks, held)
        return held

    @property
    def _blocks_held(self) -> int:
        return self.scheduler.pool.num_usable - self.scheduler.pool.num_available
