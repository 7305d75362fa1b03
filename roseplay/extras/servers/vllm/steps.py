"""Turns the messages of the probe into the telemetry of an engine: steps, blocks, tokens, and requests of other clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from roseplay.clock import Clock
from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.live_streams import LiveStreams
from roseplay.engine.records import BlockChange, EntryRecord, StepRecord
from roseplay.engine.telemetry import StepEvent, Telemetry, TokenEvent
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.stream import UNKNOWN_ID, HttpStream
from roseplay.extras.servers.vllm.messages import Admitted, BlockState, Limits, Scheduled, Snapshot, State, Step
from roseplay.extras.servers.vllm.misses import Misses

MOST_REQUESTS = 1 << 14
_UNSEEN = "how it ended was not seen from here"
_REASONS = {str(reason): reason for reason in FinishReason}


class Pool:
    """The blocks that requests hold: how many hold each, which ones, and how many blocks several requests hold."""

    def __init__(self) -> None:
        self.references: dict[int, int] = {}
        self.holders: defaultdict[int, list[int]] = defaultdict(list)
        self.shared = 0

    def change(self, states: Iterable[BlockState]) -> list[BlockChange]:
        """Take over new states; returns them with the first holder of each block."""
        changes = []
        for block, references, findable in states:
            self.shared += (references > 1) - (self.references.pop(block, 0) > 1)
            if references:
                self.references[block] = references
            holders = self.holders[block]
            del holders[: max(0, len(holders) - references)]  # a sliding window leaves blocks before the request ends
            changes.append(BlockChange(block, references, holders[0] if holders else -1, findable))
        return changes


@dataclass(slots=True)
class Followed:
    """A request that vLLM has."""

    request_id: int
    stream: HttpStream | None  # None for one of ours that has ended here
    is_ours: bool
    target: int  # tokens that it has to compute before it decodes: more than its prompt once it was preempted
    cached: int = 0
    reached: int = 0  # the most tokens that it ever had computed
    output: int = 0  # number of tokens of its answer
    last_ns: int | None = None  # when the newest of them came; None if that was before it was followed
    blocks: list[int] = field(default_factory=list)
    hashes: Sequence[int] = ()  # of the whole blocks of its prompt, if they are known


class Steps:
    """What is known of vLLM's requests and blocks, from a snapshot and the steps after it. One thread feeds it.

    Args:
        live: our own requests, which are recognised by the ``X-Request-Id`` that was sent.
        number: returns a number for a request of another client.

    Attributes:
        offset_ns: what is added to vLLM's times to get ours.
        limits: of vLLM's scheduler, after the messages so far.
        newest: number of the last step.
    """

    def __init__(self, live: RemoteStreams, telemetry: Telemetry, clock: Clock, number: Callable[[], int]) -> None:
        self._live, self._telemetry, self._clock, self._number = live, telemetry, clock, number
        self._others: LiveStreams[HttpStream] = LiveStreams(telemetry, clock)
        self._followed: dict[str, Followed] = {}
        self._pool, self._misses = Pool(), Misses()
        self._end_ns = self._waiting = self.offset_ns = self.newest = 0
        self.limits = Limits()

    def join(self, snapshot: Snapshot, *, same_boot: bool, cleared: bool = False) -> None:
        """Continue from a snapshot, if ``cleared`` without a gap before. Raises ``ValueError`` for too many requests."""
        kept = {about.request for about in snapshot.requests} if same_boot else set()
        self._forget([name for name in self._followed if name not in kept])
        now_ns, self._pool, self.limits = self._time(snapshot.now_ns), Pool(), snapshot.limits
        self._end_ns = self._waiting = 0
        self._misses = self._misses.cleared() if cleared else Misses(snapshot.block_size, snapshot.settings)
        for about in snapshot.requests:
            request = self._follow(about.request, about.prompt, now_ns, about.output)
            request.output, request.cached, request.last_ns, request.blocks = about.output, about.cached, None, []
            request.reached = max(request.reached, about.computed)
            self._give(request, about.blocks)
        record = StepRecord(step_id=snapshot.step, start_ns=now_ns, end_ns=now_ns, new_pool=True)
        self._publish(record, snapshot, snapshot.pool, [])

    def leave(self) -> None:
        """Forget all requests, since no more is heard of them."""
        self._forget(list(self._followed))

    def take(self, step: Step) -> None:
        """Publish a step. Raises ``ValueError`` for too many requests."""
        scheduled_ns, end_ns = self._time(step.schedule[1]), self._time(step.output[0])
        start_ns = min(end_ns, max(self._time(step.schedule[0]), self._end_ns))
        record = StepRecord(
            step_id=step.step,
            start_ns=start_ns,
            end_ns=end_ns,
            schedule_ns=step.schedule[1] - step.schedule[0],
            device_ns=max(0, end_ns - max(start_ns, scheduled_ns)),
            cached_tokens=sum(about.cached for about in step.new),
            draft_tokens=sum(entry.draft for entry in step.entries),
            accepted_tokens=sum(entry.accepted for entry in step.entries),
            held_by=self._obstacle(step),
        )
        for name in step.preempted:
            if (request := self._followed.get(name)) is not None:
                record.preempted.append(request.request_id)
                self._take_back(request)
                if request.stream is not None:
                    request.stream.metrics.num_preemptions += 1
        for about in step.new:
            record.admitted.append(self._admit(about, start_ns, resumed=about.request in step.resumed))
        for scheduled in step.entries:
            self._compute(record, scheduled)
        for name, blocks in step.blocks.items():
            if (request := self._followed.get(name)) is not None:
                self._give(request, blocks)
        self._live.causes.take(record)
        tokens = [event for name, ids in step.tokens.items() for event in self._tokens(name, len(ids), end_ns)]
        ended = [(self._followed.pop(name), reason) for name, reason in step.ended if name in self._followed]
        for request, _ in ended:
            self._take_back(request)
        self._publish(record, step, step.changed, tokens)
        for request, reason in ended:
            self._end(request, _REASONS.get(reason, FinishReason.STOP), time_ns=end_ns)
        self._end_ns, self._waiting = end_ns, step.waiting.get("", 0)

    # -- requests

    def _follow(self, name: str, prompt: int, submitted_ns: int, output: int = 0, priority: int = 0) -> Followed:
        """Returns a request; one that is new to this side is one of ours, or gets a number and a stream without text."""
        if (request := self._followed.get(name)) is None:
            if len(self._followed) >= MOST_REQUESTS:
                raise ValueError(f"vLLM has more than {MOST_REQUESTS} requests")
            number = self._live.number_in(name)
            stream = None if number is None else self._live.get(number)
            if number is None:
                number, params = self._number(), SamplingParams(priority=priority)
                stream = HttpStream(number, [], params, lambda _: False, min(submitted_ns, self._clock.now_ns()))
                stream.metrics.prompt_tokens, stream.metrics.completion_tokens = prompt, output
                self._others.add(stream)
            request = self._followed[name] = Followed(number, stream, self._live.number_in(name) is not None, prompt)
        if request.is_ours and request.stream is not None:
            request.stream.metrics.prompt_tokens = prompt
            self._live.report_by_steps(request.stream)
        return request

    def _admit(self, about: Admitted, start_ns: int, *, resumed: bool) -> int:
        submitted_ns = start_ns - min(start_ns, about.waited_ns or 0)
        request = self._follow(about.request, about.prompt, submitted_ns, priority=about.priority)
        if resumed:
            request.target = about.prompt + request.output
        else:
            request.cached, request.hashes = about.cached, about.hashes
            if request.stream is not None and request.stream.miss is None:
                request.stream.miss = self._misses.explain(about.hashes, about.cached, about.prompt)
        if (stream := request.stream) is not None:
            stream.metrics.cached_tokens = request.cached
            streams = self._live if request.is_ours else self._others
            streams.scheduled(stream, max(start_ns, stream.metrics.submitted_ns))
        return request.request_id

    def _compute(self, record: StepRecord, scheduled: Scheduled) -> None:
        """Add a request's part to the record of a step."""
        request = self._follow(scheduled.request, scheduled.prompt, record.start_ns)
        before, tokens = scheduled.before, scheduled.tokens
        prompt = min(tokens, max(0, request.target - before))
        record.prompt_tokens += prompt
        record.decode_tokens += tokens - prompt
        record.recomputed_tokens += max(0, min(before + prompt, request.reached) - before)
        request.reached = max(request.reached, before + tokens)
        self._misses.compute(request.hashes, before, tokens)
        computed = min(before + tokens, request.target)
        entry = EntryRecord(
            request.request_id, prompt, tokens - prompt, computed, request.target, request.cached, shared=0
        )
        record.entries.append(entry)
        if prompt and request.stream is not None:
            request.stream.computed_prompt_tokens = computed
            request.stream.notify()

    def _tokens(self, name: str, count: int, time_ns: int) -> Iterator[TokenEvent]:
        """Yields a request's new tokens, unless they have been published when they arrived, or after its end."""
        request = self._followed.get(name)
        if request is None or request.stream is None or not count:
            return
        first, last_ns, stream = request.output, request.last_ns, request.stream
        request.output, request.last_ns = first + count, time_ns
        places = self._live.reported_by_step(stream, first, count) if request.is_ours else range(count)
        if not request.is_ours:
            is_new = not stream.num_tokens
            stream.push_piece("", time_ns, count)
            if is_new and first:
                stream.metrics.first_token_ns = None  # it came before this request was followed
            elif is_new:
                self._others.first_token(stream, time_ns)
        for place in places:
            itl_ns = 0 if place or last_ns is None else time_ns - last_ns
            yield TokenEvent(request.request_id, UNKNOWN_ID, time_ns, itl_ns if first + place else None)

    def _end(self, request: Followed, reason: FinishReason, error: str | None = None, *, time_ns: int) -> None:
        """End the stream of another client's request; one of ours ends when that arrives."""
        if request.stream is not None and not request.is_ours:
            self._others.end(request.stream, reason, error, time_ns=time_ns)

    def _forget(self, names: Iterable[str]) -> None:
        """End these requests, and have tokens of ours published when they arrive until their steps are known again."""
        for name in names:
            self._end(self._followed.pop(name), FinishReason.ABORT, _UNSEEN, time_ns=self._clock.now_ns())
        self._live.restart_steps()

    # -- steps and blocks

    def _obstacle(self, step: Step) -> str | None:
        """Returns what kept a request from entering, or a prompt from being finished, as in ``core.step.Step``.

        What waits for a grammar or for remote blocks has no equal among our steps.
        """
        waiting = step.waiting.get("", 0)
        if waiting and step.running >= self.limits.max_num_seqs:
            return "batch"
        tokens = sum(scheduled.tokens for scheduled in step.entries)
        unfinished = any(it.before + it.tokens < it.prompt for it in step.entries)
        if unfinished or (waiting and tokens >= self.limits.max_num_batched_tokens):
            return "prefill"
        # Others may have arrived during the step: those that waited before it have been left out.
        left_out = min(waiting, self._waiting - len(step.new))
        return "blocks" if step.preempted or left_out > 0 else None

    def _give(self, request: Followed, blocks: Iterable[int]) -> None:
        for block in filter(None, blocks):  # 0 is a placeholder
            request.blocks.append(block)
            self._pool.holders[block].append(request.request_id)

    def _take_back(self, request: Followed) -> None:
        for block in request.blocks:
            if request.request_id in (holders := self._pool.holders[block]):
                holders.remove(request.request_id)
        request.blocks = []

    def _publish(
        self, record: StepRecord, state: State, changed: Iterable[BlockState], tokens: list[TokenEvent]
    ) -> None:
        self.newest = record.step_id
        record.running, record.waiting = state.running, sum(state.waiting.values())
        record.block_changes = self._pool.change(changed)
        record.blocks_free, record.blocks_cached = state.free or 0, state.cached or 0
        record.blocks_shared = self._pool.shared
        record.blocks_active = len(self._pool.references) - self._pool.shared
        self._telemetry.add(StepEvent(record, tokens))

    def _time(self, time_ns: int) -> int:
        """Returns a time of vLLM's on our clock; nothing has happened in the future."""
        return min(max(0, time_ns + self.offset_ns), self._clock.now_ns())
