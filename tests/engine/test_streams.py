"""What a worker publishes, on its way into streams and telemetry: no worker, no model, no tokenizer."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import weakref

import pytest
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from roseplay.config import Knobs, SamplingParams
from roseplay.core.request import FinishReason
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step, StepResult, TokenLogprobs
from roseplay.engine.messages import End, Finished, KnobsApplied, NewToken, Ping, StepOutput
from roseplay.engine.prompts import encode_prompt, takes_system_role
from roseplay.engine.published import step_record
from roseplay.engine.receiver import Receiver
from roseplay.engine.records import EntryRecord
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.engine.stream import Chunk, Stream
from roseplay.engine.telemetry import Kept, KnobEvent, RequestEvent, StepEvent, Telemetry
from roseplay.engine.transport import QueueInbox
from tests.each_line import at_each_line

SECOND = 10**9


class Letters:
    """Token 0 is a, 1 is b, and so on; token 99 cannot be decoded. The end decodes to ``held``, if it can be decoded."""

    def __init__(self, held: str | None = "") -> None:
        self.held = held

    def push(self, token_id: int) -> str:
        if token_id == 99:
            raise BaseException("no such token\nin the vocabulary\nof this tokenizer")
        return chr(97 + token_id)

    def flush(self) -> str:
        return self.push(99) if self.held is None else self.held


class Scene:
    """A receiver with streams of letters; ``take`` passes it one step's outcome."""

    def __init__(self, **telemetry: object) -> None:
        self.telemetry = Telemetry(1000, **telemetry)
        self.commands: list[object] = []
        self.receiver = Receiver(self.telemetry, Knobs(), self.commands.append)
        self.updates: list[tuple[int, str]] = []
        self.step_id = 0

    def add(
        self, request_id: int, prompt: int = 4, held: str | None = "", listener=None, kind=Stream, **sampling: object
    ) -> Stream:
        stream = kind(
            request_id,
            [0] * prompt,
            SamplingParams(**sampling),
            cancel=lambda number: not self.commands.append(End(number)),
            submitted_ns=SECOND,
            listener=listener or self._heard,
            decoder=Letters(held),
        )
        self.receiver.add(stream)
        return stream

    def _heard(self, stream: Stream) -> None:
        self.updates.append((stream.request_id, stream.text))

    def take(self, *tokens: NewToken, at: int = 2 * SECOND, finished=(), **record: object) -> StepOutput:
        scheduler = Scheduler(num_blocks=4, block_size=4, max_model_len=8, max_saved_logits=1)
        entries = record.pop("entries", [])
        step = Step(self.step_id, **record)
        made = step_record(scheduler, step, StepResult([], []), at - SECOND // 2, at, 0, entries)
        output = StepOutput(list(tokens), list(finished), made, at)
        self.step_id += 1
        self.receiver.take(output)
        return output

    def events(self, kind: type) -> list:
        return [event for event in self.telemetry.since(0)[1] if isinstance(event, kind)]

    def life(self, request_id: int) -> list[tuple[str, int]]:
        return [(event.kind, event.time_ns) for event in self.events(RequestEvent) if event.request_id == request_id]


def test_tokens_become_text_with_their_times():
    scene = Scene()
    stream, other = scene.add(1), scene.add(2)
    logprobs = TokenLogprobs(-1.0, [])
    scene.take(NewToken(1, 7, None, logprobs), NewToken(2, 8), at=2 * SECOND, admitted=[1, 2])
    scene.take(NewToken(1, 8), at=5 * SECOND)
    scene.take(NewToken(1, 9, FinishReason.LENGTH), at=7 * SECOND)
    assert (stream.text, stream.token_ids, stream.text_ends) == ("hij", [7, 8, 9], [1, 2, 3])
    assert stream.token_times_ns == [2 * SECOND, 5 * SECOND, 7 * SECOND]
    assert stream.logprobs == [logprobs]
    assert (stream.finish_reason, stream.finished, stream.error) == (FinishReason.LENGTH, True, None)
    assert (other.text, other.finished) == ("i", False)
    times = stream.metrics
    assert (times.queue_s, times.ttft_s, times.e2e_s, times.tpot_s, times.itl_s) == (0.5, 1.0, 6.0, 2.5, [3.0, 2.0])
    assert (times.prompt_tokens, times.completion_tokens) == (4, 3)
    assert scene.receiver.live() == [other]
    assert (scene.receiver.get(1), scene.receiver.get(2)) == (None, other)


def test_metrics_without_tokens_are_undefined():
    metrics = RequestMetrics(SECOND, 3)
    assert (metrics.queue_s, metrics.ttft_s, metrics.e2e_s, metrics.tpot_s, metrics.itl_s) == (None,) * 4 + ([],)
    metrics.completion_tokens, metrics.first_token_ns, metrics.last_token_ns = 1, SECOND, SECOND
    assert metrics.tpot_s is None
    metrics.completion_tokens, metrics.last_token_ns = 2, 3 * SECOND
    assert metrics.tpot_s == 2.0


def test_a_requests_life_and_every_step_are_in_the_telemetry():
    scene = Scene()
    scene.add(1)
    first = scene.take(NewToken(1, 3), at=2 * SECOND, admitted=[1])
    second = scene.take(NewToken(1, 4, FinishReason.STOP), at=3 * SECOND, admitted=[1])  # preempted and admitted again
    assert scene.life(1) == [
        ("submitted", SECOND),
        ("scheduled", 2 * SECOND - SECOND // 2),
        ("first_token", 2 * SECOND),
        ("finished", 3 * SECOND),
    ]
    steps = scene.events(StepEvent)
    assert [event.record for event in steps] == [first.record, second.record]
    assert [event.tokens for event in steps] == [[(1, 3, 2 * SECOND, None)], [(1, 4, 3 * SECOND, SECOND)]]
    assert scene.telemetry.next_cursor == len(scene.telemetry.since(0)[1]) == 6


def test_a_stop_string_ends_the_answer_here_and_is_told_to_the_worker():
    scene = Scene()
    stream, last = scene.add(1, stop=("cd",)), scene.add(2, stop=("d",))
    scene.take(NewToken(1, 1), NewToken(2, 1))
    scene.take(NewToken(1, 2), NewToken(2, 2))
    assert (stream.text, last.text) == ("b", "bc")  # c may begin a stop string
    scene.take(NewToken(1, 3), NewToken(2, 3, FinishReason.LENGTH))
    assert (stream.text, stream.finish_reason) == ("b", FinishReason.STOP)
    assert (last.text, last.finish_reason) == ("bc", FinishReason.STOP)
    assert scene.commands == [End(1, FinishReason.STOP)]
    output = scene.take(NewToken(1, 4))
    assert stream.text == "b"
    assert scene.events(StepEvent)[-1].tokens == []
    assert output.tokens


def test_the_text_of_a_token_that_ends_the_answer_is_left_out():
    scene = Scene()
    stream, last = scene.add(1, stop_token_ids=(3,), stop=("cd",)), scene.add(2)
    scene.take(NewToken(1, 1), NewToken(2, 1))
    scene.take(NewToken(1, 2), NewToken(2, 2))
    scene.take(NewToken(1, 3, FinishReason.STOP), NewToken(2, 3, FinishReason.LENGTH))
    assert (stream.text, stream.token_ids, stream.text_ends) == ("bc", [1, 2, 3], [1, 1, 1])  # c was held back
    assert (stream.finish_reason, stream.metrics.completion_tokens) == (FinishReason.STOP, 3)
    assert [(chunk.text, chunk.token_ids) for chunk in stream] == [("bc", [1, 2, 3])]
    assert last.text == "bcd"


def test_what_was_held_back_comes_at_the_end():
    scene = Scene()
    stream = scene.add(1, held="é", stop=("bx", "éz"))
    scene.take(NewToken(1, 1))
    assert stream.text == ""
    scene.take(finished=[Finished(1, FinishReason.ABORT)])
    assert (stream.text, stream.finish_reason) == ("bé", FinishReason.ABORT)
    stop = scene.add(2, held="é!", stop=("bé",))
    scene.take(NewToken(2, 0), NewToken(2, 1, FinishReason.LENGTH))
    assert stop.text == "a"


def test_one_answer_that_cannot_be_decoded_ends_alone():
    scene = Scene()
    bad, last, good = scene.add(1), scene.add(2), scene.add(3)
    scene.take(NewToken(1, 99), NewToken(2, 99, FinishReason.LENGTH), NewToken(3, 5))
    for stream in (bad, last):
        assert stream.finish_reason is FinishReason.ERROR
        assert stream.error == "the answer could not be decoded (BaseException: no such token"
    assert scene.commands == [End(1)]
    assert (good.text, good.finished) == ("f", False)
    assert [token.request_id for token in scene.events(StepEvent)[-1].tokens] == [3]


def test_an_answer_whose_end_cannot_be_decoded_ends_all_the_same():
    scene = Scene()
    stream, other = scene.add(1, held=None), scene.add(2, held=None)
    scene.take(NewToken(1, 2, FinishReason.LENGTH))
    assert (stream.text, stream.finish_reason) == ("c", FinishReason.ERROR)
    assert "could not be decoded" in stream.error
    scene.take(finished=[Finished(2, FinishReason.ERROR, "the step failed")])
    assert other.error == "the step failed"


def test_progress_of_prompts_reaches_their_streams():
    scene = Scene()
    stream = scene.add(1, prompt=9)
    assert (scene.receiver.num_live, scene.receiver.num_waiting) == (1, 1)
    scene.add(2)
    assert (scene.receiver.num_live, scene.receiver.num_waiting) == (2, 2)
    scene.take(admitted=[1, 77], entries=[EntryRecord(1, 4, 0, 6, 9, 2, 0), EntryRecord(77, 1, 0, 1, 1, 0, 0)])
    assert (scene.receiver.num_live, scene.receiver.num_waiting) == (2, 1)
    assert (stream.computed_prompt_tokens, stream.metrics.cached_tokens, stream.metrics.shared_tokens) == (6, 2, 0)
    assert scene.updates == [(1, "")]
    scene.take(NewToken(1, 0), entries=[EntryRecord(1, 3, 0, 9, 9, 2, 1)])
    assert (stream.computed_prompt_tokens, stream.metrics.cached_tokens, stream.metrics.shared_tokens) == (9, 2, 1)
    scene.take(NewToken(1, 1), entries=[EntryRecord(1, 0, 1, 5, 9, 0, 0), EntryRecord(2, 1, 0, 3, 4, 0, 0)])
    assert stream.computed_prompt_tokens == 9  # a decode does not report on the prompt
    assert scene.receiver.get(2).computed_prompt_tokens == 3
    scene.updates.clear()
    scene.take(preempted=[1, 77], entries=[EntryRecord(1, 3, 0, 3, 9, 0, 0)])
    assert (stream.metrics.num_preemptions, scene.updates) == (1, [])  # the answer has text already
    scene.take(preempted=[1])
    assert stream.metrics.num_preemptions == 2
    scene.take(
        finished=[Finished(1, FinishReason.ABORT), Finished(1, FinishReason.ERROR), Finished(5, FinishReason.STOP)],
        at=9 * SECOND,
    )
    assert stream.metrics.finished_ns == 9 * SECOND
    assert (scene.receiver.num_live, scene.receiver.num_waiting) == (1, 1)
    assert stream.finish_reason is FinishReason.ABORT


def test_all_streams_can_be_ended_at_once():
    scene = Scene()
    streams = [scene.add(number) for number in range(3)]
    assert [(stream.error, stream.computed_prompt_tokens) for stream in streams] == [(None, 0)] * 3
    scene.take(admitted=[0, 1])
    scene.receiver.end(streams[0], FinishReason.ERROR, "alone")
    scene.receiver.end(streams[0], FinishReason.ABORT, "again")
    scene.receiver.end_all(FinishReason.ERROR, "the worker ended")
    assert [stream.error for stream in streams] == ["alone", "the worker ended", "the worker ended"]
    assert {stream.finish_reason for stream in streams} == {FinishReason.ERROR}
    assert (scene.receiver.num_live, scene.receiver.num_waiting) == (0, 0)
    assert [kind for kind, _ in scene.life(2)] == ["submitted", "finished"]
    assert all(stream.metrics.finished_ns > 0 for stream in streams)
    assert all(stream.cancel() is False for stream in streams)


def test_one_stream_that_cannot_be_told_its_end_keeps_no_other_waiting():
    class Broken(Stream):
        def finish(self, *anything):
            raise BaseException("reader")

    scene = Scene()
    scene.add(1, kind=Broken)
    good = scene.add(2)
    scene.receiver.end_all(FinishReason.ERROR, "over")
    assert good.finished


def test_a_live_stream_can_be_cancelled():
    scene = Scene()
    stream = scene.add(6)
    assert stream.cancel() is True
    assert scene.commands == [End(6)]


def test_changed_knobs_are_told_with_what_they_were():
    scene = Scene()
    knobs = Knobs(max_batch_size=3, prefix_cache=False)
    scene.receiver.take_knobs(KnobsApplied(knobs, 8, 77))
    scene.receiver.take_knobs(KnobsApplied(Knobs(max_batch_size=4, prefix_cache=False), 9, 78))
    first, second = scene.events(KnobEvent)
    assert (first.knobs, first.step_id, first.time_ns) == (knobs, 8, 77)
    assert first.changed == {"max_batch_size": (32, 3), "prefix_cache": (True, False)}
    assert second.changed == {"max_batch_size": (3, 4)}


def test_a_listener_hears_of_every_change_and_may_fail():
    def broken(stream):
        raise BaseException("listener")

    scene = Scene()
    other = scene.add(2, listener=broken)
    scene.add(1)
    scene.take(NewToken(2, 0, FinishReason.LENGTH), NewToken(1, 0))
    scene.take(NewToken(1, 1, FinishReason.LENGTH))
    assert scene.updates == [(1, "a"), (1, "ab")]
    assert other.finish_reason is FinishReason.LENGTH


# -- readers


def test_a_reader_gets_everything_once_in_chunks():
    scene = Scene()
    stream = scene.add(1)
    scene.take(NewToken(1, 0))
    scene.take(NewToken(1, 1), at=3 * SECOND)
    chunks = iter(stream)
    assert next(chunks) == Chunk("ab", [0, 1], [2 * SECOND, 3 * SECOND])
    scene.take(NewToken(1, 2, FinishReason.LENGTH), at=4 * SECOND)
    assert list(chunks) == [Chunk("c", [2], [4 * SECOND])]
    assert stream.result(timeout=0) is stream
    assert stream.wait_for_first_token(0) is True


def test_a_reader_never_sees_half_of_a_token():
    stream = Scene().add(1, logprobs=0)
    seen = []

    def look() -> None:
        if not seen and stream.wait_for_first_token(0):
            chunk = next(iter(stream))
            seen.append((chunk.text, chunk.token_ids, len(chunk.times_ns), stream.text_ends[0], len(stream.logprobs)))

    def push() -> None:
        stream.push(7, 2 * SECOND, TokenLogprobs(-1.0, []))
        stream.notify()

    at_each_line(push, look)
    assert seen == [("h", [7], 1, 1, 1)]


def test_waiting_ends_in_time_or_with_news():
    scene = Scene()
    stream = scene.add(1)
    with pytest.raises(TimeoutError, match=r"request 1 did not finish within 0\.01 s"):
        stream.result(timeout=0.01)
    assert stream.wait_for_first_token(0.01) is False
    scene.take(NewToken(1, 0))
    assert stream.wait_for_first_token(0) is True
    aborted = scene.add(2)
    scene.take(finished=[Finished(2, FinishReason.ABORT)])
    assert aborted.wait_for_first_token(0) is True


def test_a_thread_that_waits_is_woken():
    scene = Scene()
    stream = scene.add(1)
    got: queue.SimpleQueue = queue.SimpleQueue()
    reader = threading.Thread(target=lambda: [got.put(chunk.text) for chunk in stream], daemon=True)
    reader.start()
    for token, reason in ((0, None), (1, None), (2, FinishReason.LENGTH)):
        scene.take(NewToken(1, token, reason))
        assert got.get(timeout=30) == "abc"[token]
    reader.join(30)
    assert not reader.is_alive()


def test_a_coroutine_that_waits_is_woken():
    scene = Scene()
    stream = scene.add(1)

    async def read():
        texts = []
        loop = asyncio.get_running_loop()
        loop.call_soon(scene.take, NewToken(1, 0))
        async for chunk in stream:
            texts.append(chunk.text)
            last = len(texts) == 2
            if not stream.finished:
                loop.call_soon(scene.take, NewToken(1, len(texts), FinishReason.LENGTH if last else None))
        return texts

    assert asyncio.run(asyncio.wait_for(read(), 30)) == ["a", "b", "c"]


def test_an_event_loop_that_was_closed_keeps_nobody_from_the_news():
    scene = Scene()
    stream = scene.add(1)

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(stream)), 0.01)

    asyncio.run(give_up())
    scene.take(NewToken(1, 0))
    assert scene.updates == [(1, "a")]


def test_an_end_without_tokens_gives_no_chunk():
    scene = Scene()
    stream = scene.add(1)
    scene.take(finished=[Finished(1, FinishReason.ABORT)])
    assert list(stream) == []
    assert repr(stream) == "Stream(1, 0 tokens, abort)"


# -- telemetry


def test_the_ring_keeps_the_newest_events():
    ring = Telemetry(3)
    events = [KnobEvent(Knobs(), number, 0, {}) for number in range(5)]
    assert (ring.next_cursor, ring.since(0)) == (0, (0, []))
    for event in events[:2]:
        ring.add(event)
    assert ring.since(0) == (2, events[:2])
    assert ring.since(1) == (2, events[1:2])
    assert ring.since(2) == (2, [])
    for event in events[2:]:
        ring.add(event)
    assert ring.next_cursor == 5
    assert ring.since(0) == (5, events[2:])
    assert ring.since(4) == (5, events[4:])
    assert ring.since(-7) == (5, events[2:])


@pytest.mark.parametrize(
    ("passed_s", "streams", "tokens", "kept"),
    [(5.1, 2, 10**6, [1, 2]), (5.1, 100, 10, [1, 2]), (5.1, 100, 1, [2]), (4.9, 2, 1, [0, 1, 2])],
)
def test_the_streams_that_ended_last_are_kept_once_readers_had_time(passed_s, streams, tokens, kept):
    times = [0.0]
    scene = Scene(kept=Kept(5.0, streams, tokens), clock=lambda: times[-1])
    for number in range(3):
        scene.add(number)
        scene.take(NewToken(number, 0, FinishReason.LENGTH))  # four prompt tokens and one
    times.append(passed_s)  # and nothing ends any more
    ended = [event for event in scene.events(RequestEvent) if event.kind == "finished"]
    assert [event.request_id for event in ended if event.stream is not None] == kept


# -- ways in and out


def test_an_event_loop_that_has_ended_is_not_kept():
    async def wait() -> weakref.ref:
        scene = Scene()
        stream = scene.add(0)
        scene.take(NewToken(0, 0, FinishReason.LENGTH))
        assert [chunk async for chunk in stream]
        return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(wait()) for _ in range(3)]
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3


def test_an_inbox_gives_all_that_is_there():
    commands: queue.SimpleQueue = queue.SimpleQueue()
    inbox = QueueInbox(commands)
    assert inbox.take(0.0) == []
    assert inbox.take(0.01) == []
    for number in range(3):
        commands.put(Ping(number))
    assert inbox.take(0.0) == [Ping(0), Ping(1), Ping(2)]
    commands.put(Ping(3))
    commands.put(Ping(4))
    assert inbox.take(None) == [Ping(3), Ping(4)]


class Words:
    """A tokenizer for words that are numbers: each word is its own token id."""

    chat_template = "x"
    bos_token_id = 9

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [9] * add_special_tokens + [int(word) for word in text.split()]}


def test_prompts_are_text_or_ids_within_the_vocabulary():
    assert encode_prompt([1, 2, 9], None, 10) == [1, 2, 9]
    assert encode_prompt((0,), None, 10) == [0]
    assert encode_prompt("3 4", Words(), 10) == [9, 3, 4]
    for bad in ([], [10], [-1], [1.5], [True], {}, 7, None, ["x"], "x"):
        with pytest.raises(ValueError):
            encode_prompt(bad, Words(), 10)
    with pytest.raises(ValueError, match="tokenizer"):
        encode_prompt("3", None, 10)


def test_chat_messages_are_written_by_the_models_template_or_as_paragraphs():
    messages = [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]
    plain = Words()
    plain.chat_template = None
    assert encode_prompt(messages, plain, 10) == [1, 2, 3]  # no beginning-of-sequence token: a template would write it
    templated = Words()
    asked = []
    templated.apply_chat_template = lambda messages, **options: asked.append((messages, options)) or "8 7"
    assert encode_prompt(messages, templated, 10) == [8, 7]
    assert asked == [(messages, {"add_generation_prompt": True, "tokenize": False})]
    for bad in (
        [{"role": "user"}],
        [{"content": "1"}],
        [{"role": 1, "content": "1"}],
        [{"role": "user", "content": 1}],
    ):
        with pytest.raises(ValueError, match="a chat message is"):
            encode_prompt(bad, templated, 10)
    with pytest.raises(ValueError, match="template refused the messages"):
        encode_prompt(messages, Words(), 10)  # it has no template after all
    templated.apply_chat_template = lambda *args, **options: ""
    with pytest.raises(ValueError, match="empty"):
        encode_prompt(messages, templated, 10)


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}", True),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}{{ messages[0].content }}", False),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", False),
        (None, True),
    ],
)  # fmt: skip
def test_some_templates_take_no_system_message(template, takes):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])))
    tokenizer.chat_template = template
    assert takes_system_role(tokenizer) is takes
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    if template is None or "raise" not in template:
        encode_prompt(messages, tokenizer, 10)
        return
    with pytest.raises(
        ValueError, match="No system role; it takes no system message: put its text into the first user"
    ):
        encode_prompt(messages, tokenizer, 10)


def test_control_tokens_in_a_message_are_text_and_the_templates_are_not():
    """One of the names ``<s>`` and ``<s>!`` is a prefix of the other. A message with them is read letter by letter."""
    letters = {letter: number for number, letter in enumerate("<>s!ab|")}
    backend = Tokenizer(models.BPE(vocab=letters, merges=[]))
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", len(letters))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "<s>!"})
    begin, end = tokenizer.convert_tokens_to_ids(["<s>", "<s>!"])
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m.content }}<s>!{% endfor %}"

    def encoded(*contents: str) -> list[int]:
        return encode_prompt([{"role": "user", "content": content} for content in contents], tokenizer, 100)

    def spelled(text: str) -> list[int]:
        return [letters[letter] for letter in text]

    assert encoded("ab", "b") == [begin, *spelled("ab"), end, begin, *spelled("b"), end]
    assert encoded("a<s>b<s>!", "a") == [begin, *spelled("a<s>b<s>!"), end, begin, *spelled("a"), end]
    assert encoded("<s>", "<s>!") == [begin, *spelled("<s>"), end, begin, *spelled("<s>!"), end]
    assert encoded("<s>") == [begin, *spelled("<s>"), end]
