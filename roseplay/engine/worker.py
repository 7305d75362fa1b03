"""The engine's loop: handle commands, run one step, publish its result. The same in a thread and in a process.

If the model runner supports it (on a GPU), steps overlap: the next one is scheduled and launched while the last one
runs, and only then are the last one's tokens applied and published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs
from roseplay.core.cache_entries import SAVED_LOGITS_BYTES
from roseplay.core.cache_events import CacheLog
from roseplay.core.request import FinishReason, Request, RequestStatus
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import DeviceLostError, Step, StepResult, StepTooLargeError
from roseplay.engine.messages import (
    ClearCache,
    Command,
    End,
    Event,
    Finished,
    Inspect,
    Inspected,
    InspectMemory,
    KnobsApplied,
    NewToken,
    Pause,
    Ping,
    Pong,
    PromptLogprobs,
    Ready,
    SetKnobs,
    Shutdown,
    StepOutput,
    StepStarted,
    Submit,
)
from roseplay.engine.published import block_info, entry_record, prompt_logprobs_of, step_record, tokens_of
from roseplay.engine.records import EntryRecord, StepRecord
from roseplay.engine.runner import Done, Launched, Runner
from roseplay.engine.slow_motion import Inbox, stretch
from roseplay.formats.text import error_line

logger = logging.getLogger(__name__)

SEED_MIX = 0x9E3779B97F4A7C15
ANNOUNCE_FROM_S = 0.5  # a longer step is announced, so that the worker does not count as frozen


@dataclass(slots=True)
class Flight:
    """A step in flight: launched, but its result has not been applied yet."""

    step: Step
    launched: Launched
    entries: list[EntryRecord]  # recorded when it was scheduled, since scheduling the next step changes the requests
    start_ns: int
    schedule_ns: int


class Worker:
    """Runs steps until it is shut down.

    Args:
        runner: runs the model.
        inbox: source of commands.
        send: sends events; must not block for long.
        clock: source of all reported times.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        knobs: Knobs,
        inbox: Inbox,
        send: Callable[[Event], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self.runner = runner
        self.config = config
        self.inbox = inbox
        self.send = send
        self.info = runner.info()
        self.info.check_knobs(knobs)
        self.scheduler = self._new_scheduler(knobs)
        self._finished: list[Finished] = []
        self._late: list[Command] = []
        self._flying: Flight | None = None
        self._last_end_ns = 0
        self._last_failure = ""
        self._blocks_changed = False
        self._running = True
        self._paused = False

    def _new_scheduler(self, knobs: Knobs) -> Scheduler:
        self._new_pool = True  # to be reported in the next record
        return Scheduler(
            num_blocks=self.runner.num_blocks,
            block_size=self.runner.block_size,
            max_model_len=self.info.max_model_len,
            max_saved_logits=max(1, SAVED_LOGITS_BYTES // self.runner.logits_bytes),
            knobs=knobs,
            token_limit=self.runner.memory_limit,
            num_state_slots=self.info.state_slots,
            num_state_snapshots=self.info.state_snapshots,
            num_host_blocks=self.info.host_blocks,
            state_interval=self.config.state_interval,
            cache_log=CacheLog() if self.config.kv_events else None,
        )

    def run(self) -> None:
        """Run the loop until ``Shutdown``."""
        self.send(Ready(self.info, self.scheduler.knobs))
        while self._running:
            idle = not self._has_work and self._flying is None and not self._blocks_changed
            self._handle_all(self.inbox.take(None if idle else 0.0))
            if self._running and self._has_work:
                self._step()
            elif self._flying is not None:
                self._land()
            elif self._blocks_changed:
                self._publish_counts()

    @property
    def _has_work(self) -> bool:
        return self.scheduler.has_work and not self._paused

    # -- commands

    def _handle_all(self, commands: list[Command]) -> None:
        for command in commands:
            try:
                self._handle(command)
            except BrokenPipeError:  # the client is gone
                raise
            except Exception as error:  # the following commands must not be lost
                if isinstance(command, Inspect | InspectMemory):
                    self._log_failure("a question could not be answered", error)
                else:
                    self._replace_scheduler(error)

    def _handle(self, command: Command) -> None:
        self._blocks_changed |= not isinstance(command, Inspect | InspectMemory | Pause | Ping)
        match command:
            case Submit():
                self._add(command)
            case End(request_id, reason):
                if self.scheduler.end(request_id, reason) is not None:
                    self._finished.append(Finished(request_id, reason))
            case SetKnobs(knobs):
                self.scheduler.set_knobs(knobs)
                self.send(KnobsApplied(knobs, self.scheduler.next_step_id, self.clock.now_ns()))
            case ClearCache():
                self.scheduler.clear_cache()
            case Pause(paused):
                self._paused = paused
            case Inspect(token, block):
                self.send(Inspected(token, block_info(self.scheduler, block)))
            case Ping(token):
                self.send(Pong(token))
            case InspectMemory(token):
                self.send(Inspected(token, self.runner.free_memory()))
            case Shutdown():
                self._running = False

    def _add(self, command: Submit) -> None:
        seed = ((self.config.seed * SEED_MIX) ^ (command.request_id * 0xBF58476D1CE4E5B9)) & (2**63 - 1)
        try:
            self.scheduler.add(
                Request(
                    command.request_id,
                    command.prompt_token_ids,
                    command.sampling,
                    eos_token_ids=self.runner.eos_token_ids,
                    seed=seed,
                    matcher=command.compiled and command.compiled.result(),
                    bad_words=command.bad_words,
                )
            )
        except ValueError as error:
            self._finished.append(Finished(command.request_id, FinishReason.ERROR, str(error)))
        except Exception as error:
            self._log_failure("a request could not be accepted", error)
            self._finished.append(Finished(command.request_id, FinishReason.ERROR, error_line(error)))

    # -- a step

    def _step(self) -> None:
        """Launch the next step, then finish the previous one; without overlap, launch and finish the same one."""
        flying = self._flying
        if flying is not None:
            if not (self._overlaps and self.scheduler.can_run_ahead(flying.step)):
                self._land()
                return
            self.scheduler.assume(flying.step)
        launched = self._launch()
        if flying is not None and self._flying is flying:
            self._land(launched)
        else:
            self._flying = launched
        if launched is not None and not self._overlaps:
            self._land()

    @property
    def _overlaps(self) -> bool:
        knobs = self.scheduler.knobs
        return self.runner.runs_ahead and knobs.overlap and knobs.slow_motion == 1.0

    def _launch(self) -> Flight | None:
        """Schedule a step and launch it; returns ``None`` if nothing was launched."""
        start_ns = self.clock.now_ns()
        self.scheduler.step_limit = self.runner.max_step_tokens  # these follow the measured speed
        self.scheduler.token_cost = self.runner.token_cost
        try:
            step = self.scheduler.schedule()
        except Exception as error:
            self._replace_scheduler(error)
            return None
        if self._flying is not None and not (step.entries or step.dropped_logits):
            return None  # everything waits for the step in flight
        schedule_ns = self.clock.now_ns() - start_ns
        entries = [entry_record(entry) for entry in step.entries]
        predicted_s = self.runner.predict_s(step) * self.scheduler.knobs.slow_motion
        if predicted_s > ANNOUNCE_FROM_S:
            self.send(StepStarted(step.step_id, predicted_s))
        try:
            launched = self.runner.launch(step) if self._overlaps else Done(self.runner.execute(step))
        except Exception as error:
            self._launch_failed(step, error)
            return None
        if self.scheduler.knobs.slow_motion != 1.0:
            self._stretch(step, predicted_s, start_ns)
        return Flight(step, launched, entries, start_ns, schedule_ns)

    def _stretch(self, step: Step, predicted_s: float, start_ns: int) -> None:
        """Wait in slow motion. If the step took longer than predicted, so does the wait: announce it again."""
        factor = self.scheduler.knobs.slow_motion
        took_ns = self.clock.now_ns() - start_ns
        if self.info.simulated:  # the time of its device alone: that of this machine would be stretched, too
            took_ns = round(predicted_s / factor * 1e9)
        left_s = (start_ns + took_ns * factor - self.clock.now_ns()) / 1e9
        if left_s > max(ANNOUNCE_FROM_S, predicted_s):
            self.send(StepStarted(step.step_id, left_s))
        self._late = stretch(self.inbox, factor, start_ns, took_ns, self.clock)

    def _land(self, behind: Flight | None = None) -> None:
        """Wait for the step in flight and publish its result; ``behind`` is the step launched after it, if any."""
        flying, self._flying = self._flying, behind
        assert flying is not None
        step = flying.step
        try:
            result = flying.launched.result()
            new_tokens = self.scheduler.update(step, result)
        except Exception as error:
            self._flying = None  # a step that was launched after a failed one is lost as well
            self._fail(error, step, *([behind.step] if behind is not None else []))
            return
        for request, reason in self.scheduler.take_errors():
            self._finished.append(Finished(request.request_id, FinishReason.ERROR, reason))
        # Overlapping steps are published as if they ran one after the other.
        start_ns = max(flying.start_ns, self._last_end_ns)
        try:
            record = step_record(
                self.scheduler, step, result, start_ns, self.clock.now_ns(), flying.schedule_ns, flying.entries
            )
            self._publish(tokens_of(step, result, new_tokens), record, prompt_logprobs_of(step, result))
        except BrokenPipeError:  # the client is gone
            raise
        except Exception as error:
            self._publishing_failed(step, error)

    def _publishing_failed(self, step: Step, error: Exception) -> None:
        """End the requests of a step whose tokens did not reach the client, since their answers would have gaps."""
        self._log_failure("a step could not be published", error)
        reason = error_line(error)
        for entry in step.entries:
            request_id = entry.request.request_id
            self.scheduler.end(request_id, FinishReason.ERROR)
            self._finished.append(Finished(request_id, FinishReason.ERROR, reason))
        self._publish_counts()

    def _launch_failed(self, step: Step, error: Exception) -> None:
        """Finish the step in flight, then undo ``step``: retry in smaller steps if memory was short, else fail it."""
        if self._flying is not None:
            self._land()
        if not isinstance(error, StepTooLargeError):
            self._fail(error, step)
            return
        try:
            shrunk = self.scheduler.shrink(step)
        except Exception:
            logger.exception("a step could not be undone")
            self._replace_scheduler(error)
            return
        if not shrunk:
            self._fail(error, step)
            return
        self._blocks_changed = True
        if step.preempted:
            self._publish_counts(step.preempted)
        logger.warning("no memory for a step: at most %d tokens for a while (%s)", self.scheduler.token_limit, error)

    def _fail(self, error: Exception, *steps: Step) -> None:
        """End the requests of all steps in flight with the error's message. Re-raises it if the device is lost."""
        if isinstance(error, DeviceLostError):
            raise error
        self._log_failure("a step failed", error)
        reason = error_line(error)
        entries = [entry for step in steps for entry in step.entries]
        over = [entry.request for entry in entries if entry.request.status is RequestStatus.FINISHED]
        try:
            ended = self.scheduler.fail(*steps)
        except Exception:
            logger.exception("the failed step could not be undone")
            self._finished += [Finished(request.request_id, FinishReason.ERROR, reason) for request in over]
            self._replace_scheduler(error)
            return
        # Requests that have finished may have done so in this unpublished step; otherwise the client ignores these.
        self._finished += [Finished(request.request_id, FinishReason.ERROR, reason) for request in (*over, *ended)]
        self._publish_counts([request_id for step in steps for request_id in step.preempted])

    def _replace_scheduler(self, error: Exception) -> None:
        """End all requests and use a new scheduler, since this one may be inconsistent."""
        self._log_failure("the scheduler failed", error)
        self._flying = None
        self._finished += [Finished(lost, FinishReason.ERROR, error_line(error)) for lost in self.scheduler.requests]
        self.runner.clear()
        before, self.scheduler = self.scheduler, self._new_scheduler(self.scheduler.knobs)
        self.scheduler.next_step_id = before.next_step_id
        self._publish_counts()

    def _publish_counts(self, preempted: Sequence[int] = ()) -> None:
        """Publish what changed outside of a step as a step without entries: blocks, ended requests, and what a step that
        failed has ``preempted``.
        """
        now_ns = self.clock.now_ns()
        step = Step(self.scheduler.next_step_id, preempted=list(preempted))
        self.scheduler.next_step_id += 1
        self._publish([], step_record(self.scheduler, step, StepResult([], []), now_ns, now_ns, 0, []))

    def _publish(
        self, tokens: list[NewToken], record: StepRecord, prompt_logprobs: Sequence[PromptLogprobs] = ()
    ) -> None:
        finished, self._finished = self._finished, []
        self._blocks_changed = False
        self._last_end_ns = record.end_ns
        record.new_pool, self._new_pool = self._new_pool, False
        try:
            self.send(StepOutput(tokens, finished, record, self.clock.now_ns(), list(prompt_logprobs)))
        except Exception:
            self._finished = finished + self._finished
            raise
        late, self._late = self._late, []
        self._handle_all(late)

    def _log_failure(self, what: str, error: Exception) -> None:
        """Log with a traceback, or in one line if it repeats the last failure: bad requests may come by the hundred."""
        failure = f"{what}: {error_line(error)}"
        again, self._last_failure = failure == self._last_failure, failure
        logger.error("%s", f"{failure} (again)" if again else failure, exc_info=None if again else error)
