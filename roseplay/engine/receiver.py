"""Distributes what the worker publishes: tokens to their streams, steps to the telemetry."""

from __future__ import annotations

import logging
from collections.abc import Callable

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import Knobs
from roseplay.core.request import FinishReason
from roseplay.engine.live_streams import LiveStreams
from roseplay.engine.messages import Command, End, KnobsApplied, NewToken, StepOutput
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream, decoding_failed
from roseplay.engine.telemetry import KnobEvent, StepEvent, Telemetry, TokenEvent

logger = logging.getLogger(__name__)


class Receiver(LiveStreams[Stream]):
    """The live streams of a worker.

    Args:
        knobs: the worker's initial knobs; the first change is reported relative to these.
        send: sends the worker a command when an answer ends here: at a stop string, or because it cannot be decoded.
        clock: source of the time when a stream is ended without the worker.
    """

    def __init__(
        self, telemetry: Telemetry, knobs: Knobs, send: Callable[[Command], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(telemetry, clock)
        self._knobs = knobs
        self._send = send

    # -- the receiver thread

    def take(self, output: StepOutput) -> None:
        """Apply the result of a step, to streams first, so that readers of the telemetry find the text there."""
        time_ns = output.published_ns
        for prompt in output.prompt_logprobs:
            if (stream := self._streams.get(prompt.request_id)) is not None:
                stream.prompt_logprobs += prompt.logprobs
        self._note_progress(output.record)
        tokens = [event for token in output.tokens if (event := self._take_token(token, time_ns)) is not None]
        self._telemetry.add(StepEvent(output.record, tokens))
        for finished in output.finished:
            if (stream := self._streams.get(finished.request_id)) is not None:
                self.end(stream, finished.reason, finished.error, time_ns=time_ns)

    def take_knobs(self, event: KnobsApplied) -> None:
        before, self._knobs = self._knobs, event.knobs
        self._telemetry.add(KnobEvent.after(before, event.knobs, event.step_id, event.time_ns))

    def _take_token(self, token: NewToken, time_ns: int) -> TokenEvent | None:
        stream = self._streams.get(token.request_id)
        if stream is None:  # it has ended here, at a stop string or by an abort that the worker has not seen yet
            return None
        last_ns = stream.metrics.last_token_ns
        try:
            reason = token.finish_reason
            is_stop, is_last = reason is FinishReason.STOP, reason is not None
            hit_stop = stream.push(token.token_id, time_ns, token.logprobs, is_stop, is_last=is_last)
        except BaseException as error:  # a panic in the tokenizer's library is not an Exception
            logger.exception("request %d could not be decoded", stream.request_id)
            if token.finish_reason is None:
                self._send(End(token.request_id))
            self.end(stream, FinishReason.ERROR, decoding_failed(error), time_ns=time_ns)
            return None
        if last_ns is None:
            self.first_token(stream, time_ns)
        if hit_stop:
            if token.finish_reason is None:
                self._send(End(token.request_id, FinishReason.STOP))
            self.end(stream, FinishReason.STOP, time_ns=time_ns)
        elif token.finish_reason is not None:
            self.end(stream, token.finish_reason, time_ns=time_ns)
        else:
            stream.notify()
        return TokenEvent(token.request_id, token.token_id, time_ns, None if last_ns is None else time_ns - last_ns)

    def _note_progress(self, record: StepRecord) -> None:
        self.causes.take(record)
        for request_id in record.admitted:
            if (stream := self._streams.get(request_id)) is not None:
                self.scheduled(stream, record.start_ns)
        for request_id in record.preempted:
            if (stream := self._streams.get(request_id)) is not None:
                stream.metrics.num_preemptions += 1
        for request_id, miss in record.misses:
            if (stream := self._streams.get(request_id)) is not None:
                stream.miss = miss
        for entry in record.entries:
            if entry.decode_tokens:
                continue
            if (stream := self._streams.get(entry.request_id)) is not None:
                stream.computed_prompt_tokens = entry.computed
                stream.metrics.cached_tokens = entry.cached
                stream.metrics.shared_tokens = entry.shared
                if not stream.token_ids:
                    stream.notify()
