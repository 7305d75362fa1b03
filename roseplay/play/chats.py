"""A chat: its turns, how many of them fit into the next prompt, and where each token is in an answer's text."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from roseplay.core.budget import RequestTooLargeError
from roseplay.core.info import EngineInfo
from roseplay.core.request import FinishReason
from roseplay.engine.engine_like import HasTokenizer
from roseplay.engine.prompts import encode_prompt, takes_system_role
from roseplay.formats.invalid import first_fault
from roseplay.formats.json_text import strict_json
from roseplay.formats.numbers import whole
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.lengths import prompt_length
from roseplay.traffic.metrics import ms, percentile

MAX_TURNS = 64
MAX_CHARS = 200_000  # per chat, questions and answers together
MAX_MESSAGES = 256  # in one conversation sent by a program
CHARS_PER_TOKEN = 16
MAX_PROMPT_CHARS = 1_000_000

_TAG_TOKENS = 12  # at most, for "<think>" and the white space after it

Message = Mapping[str, Any]


class CheckedMessage(TypedDict):
    """Only the usual roles are accepted: many templates write a role verbatim into the prompt, where it could act as a
    control token."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


_MESSAGES: TypeAdapter[list[CheckedMessage]] = TypeAdapter(
    Annotated[list[CheckedMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
)


AnswerState = Literal["queued", "waiting", "prefill", "decode", "stopping", "done", "stopped", "error"]


class AnswerFigures(TypedDict, total=False):
    """A request's state, counts and latencies, for a lane; empty before there is one."""

    state: AnswerState
    prompt: int
    tokens: int
    ttft_ms: float | None
    itl_p50: float | None
    computed: int
    target: int
    cached: int
    reason: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    text: str  # of the tokens below; once ended, including text that the end added
    # Where in ``text`` each token ends, in characters; text after the last token's end also belongs to it.
    ends: Sequence[int]
    times_ns: Sequence[int]  # when each token was published
    figures: AnswerFigures
    late: Sequence[tuple[float, float]] = ()  # see ``TrackedRequest``


class Turn:
    """A question and its answer.

    Args:
        question: as the user wrote it.
        model: that answers it.
        left_out: number of earlier turns that did not fit into its prompt.
        thinking: whether its prompt ends with the beginning of a part in which the model thinks.
        no_role: whether it has a system prompt for which the model's chat template has no role.
    """

    def __init__(self, question: str, model: str, left_out: int = 0, thinking: bool = False, no_role: bool = False):
        self.question, self.model = question, model
        self.left_out = left_out
        self.thinking = thinking
        self.no_role = no_role
        self.born = 0
        self.request_id = -1
        self.tracked: TrackedRequest | None = None  # its request, until ``settle``
        self._settled: Answer | None = None

    def begin(self, tracked: TrackedRequest) -> None:
        self.tracked, self.request_id = tracked, tracked.request_id

    @property
    def answer(self) -> Answer:
        if self._settled is not None:
            return self._settled
        tracked = self.tracked
        if tracked is None:
            return Answer("", (), (), {})
        stream, figures = tracked.stream, figures_of(tracked)
        ended = tracked.finished  # read first: then the text below is complete
        times = stream.token_times_ns
        ends = stream.text_ends
        count = min(len(ends), len(times))
        text = stream.text if ended else stream.text[: ends[count - 1]] if count else ""
        return Answer(text, ends[:count], times[:count], figures, tuple(tracked.late))

    def settle(self) -> None:
        """Freeze the answer and release its request, because the chat continues."""
        if self._settled is None:
            answer = self.answer
            if answer.figures.get("reason") is None:
                answer.figures.update({"state": "stopped", "reason": str(FinishReason.ABORT)})
            self._settled, self.tracked = answer, None

    @property
    def has_words(self) -> bool:
        """Whether it has an answer for later prompts: not if it failed or was stopped before its first word."""
        answer = self.answer
        return answer.figures.get("state") != "error" and bool(answer.text.strip())

    @property
    def chars(self) -> int:
        return len(self.question) + len(self.answer.text)


class Chat:
    """The turns of a lane, oldest first. Readers use ``state``, which is replaced as a whole; writers hold ``lock``.

    Each change to the list of turns gets a new edition number, unique among all chats of the server, so that a page can
    tell whether the edition that it remembers belongs to this chat.
    """

    editions = itertools.count(1)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: tuple[int, tuple[Turn, ...]] = (0, ())

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.state[1]

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    def append(self, before: Sequence[Turn], turn: Turn) -> None:
        """Replace the turns with ``before`` and this new one; the oldest beyond the limits are dropped."""
        for earlier in before:
            earlier.settle()
        turns = list(before)[-(MAX_TURNS - 1) :]
        chars = sum(earlier.chars for earlier in turns) + len(turn.question)
        while turns and chars > MAX_CHARS:
            chars -= turns.pop(0).chars
        turn.born = next(self.editions)
        self.state = (turn.born, (*turns, turn))

    def clear(self) -> None:
        self.state = (next(self.editions), ())

    def send_again(self) -> None:
        """Have pages fetch all turns again, since they showed something else in this chat's place."""
        with self.lock:
            if not self.state[0]:
                return  # it was never used
            edition = next(self.editions)
            for turn in self.turns:
                turn.born = edition
            self.state = (edition, self.turns)


def messages_of(system: str, turns: Sequence[Turn], question: str, tokenizer: Any | None) -> list[dict[str, str]]:
    """Returns a conversation as chat messages; a system prompt without a role is put before the first question."""
    messages = []
    for turn in turns:
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer.text})
    messages.append({"role": "user", "content": question})
    if has_no_role(system, tokenizer):
        first = messages[0]
        return [{**first, "content": f"{system}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": system}, *messages] if system.strip() else messages


def has_no_role(system: str, tokenizer: Any | None) -> bool:
    """Whether there is a system prompt that the model's chat template does not accept."""
    return bool(system.strip()) and not takes_system_role(tokenizer)


def max_prompt_chars(max_model_len: int) -> int:
    """Returns the most characters, over all messages, of a prompt that is tokenised to see whether it fits.

    The time to tokenise is proportional to the length; in practice, no text with more characters per token fits.
    """
    return min(CHARS_PER_TOKEN * max_model_len, MAX_PROMPT_CHARS)


def check_chars(chars: int, max_model_len: int) -> None:
    """Raises ``ValueError`` if a prompt has too many characters."""
    limit = max_prompt_chars(max_model_len)
    if chars > limit:
        raise ValueError(f"the prompt has {whole(chars)} characters: use at most {whole(limit)} with this model")


def checked_prompt(prompt: Any) -> str:
    """Returns the prompt without surrounding white space; raises ``ValueError`` if nothing is left."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("the prompt is empty: write something to send")
    return prompt.strip()


def checked_messages(messages: Any) -> list[Message]:
    """Returns chat messages with only role and content, given as such or as JSON; raises ``ValueError``."""
    if isinstance(messages, str):
        messages = strict_json(messages.encode("utf-8", "replace"), "the messages")
    try:
        return list(_MESSAGES.validate_python(messages))
    except ValidationError as error:
        raise ValueError(first_fault(error, "the messages")) from None


def as_prompt(messages: Sequence[Message], engine: HasTokenizer) -> Any:
    """Returns messages as a prompt for ``engine.submit``.

    This is the messages if the model has a chat template or a server applies one, otherwise plain text or, without a
    tokenizer, one token per byte.
    """
    if not engine.info.tokenizes:
        return list(messages)
    if engine.tokenizer is not None and getattr(engine.tokenizer, "chat_template", None):
        return list(messages)
    text = "\n\n".join(str(message["content"]) for message in messages)
    if engine.tokenizer is not None:
        return text
    return [1 + byte % (engine.info.vocab_size - 1) for byte in text.encode()]


def title_of(prompt: Any) -> str:
    """Returns a prompt for display: in a chat, the last message."""
    if isinstance(prompt, str):
        return prompt
    if prompt and isinstance(prompt[-1], Mapping):
        return str(prompt[-1].get("content", ""))
    return f"{len(prompt)} token ids"


def next_prompt(
    turns: Sequence[Turn], *, system: str, question: str, max_new_tokens: int, engine: HasTokenizer
) -> tuple[Any, int]:
    """Returns the prompt that asks ``question`` after the newest ``turns`` that fit, and the number of those left out.

    The prompt is token ids, or messages for a server, with room for an answer of ``max_new_tokens``. What another model
    answered is not in it. The question is never left out: if it does not fit, ``submit`` raises an error, or the server
    refuses it.
    """
    info: EngineInfo = engine.info
    history = [turn for turn in turns if turn.model == info.model and turn.has_words]
    tried: dict[int, Any] = {}

    def fits(skipped: int) -> bool:
        prompt = as_prompt(messages_of(system, history[skipped:], question, engine.tokenizer), engine)
        if info.tokenizes:
            prompt = encode_prompt(prompt, engine.tokenizer, info.vocab_size)
        tried[skipped] = prompt
        try:
            info.check_fits(prompt_length(prompt, engine), max_new_tokens)
        except RequestTooLargeError:
            return False
        return True

    if fits(0):  # nearly always
        return tried[0], 0
    skipped = bisect_left(range(len(history)), True, lo=1, key=fits) if history else 0
    if skipped not in tried:
        fits(skipped)
    return tried[skipped], skipped


def begins_thinking(prompt: Any, tokenizer: Any | None) -> bool:
    """Whether a prompt of token ids ends with ``<think>``, which some templates add: the answer begins inside it."""
    if tokenizer is None or not prompt or not isinstance(prompt[-1], int):
        return False
    end = tokenizer.decode(prompt[-_TAG_TOKENS:], skip_special_tokens=False)
    return bool(end.rstrip().endswith("<think>"))


def figures_of(tracked: TrackedRequest) -> AnswerFigures:
    stream, metrics = tracked.stream, tracked.stream.metrics
    return {
        "state": state_of(tracked),
        "prompt": tracked.prompt_tokens,
        "tokens": metrics.completion_tokens,
        "ttft_ms": ms(tracked.ttft_s, 1),
        "itl_p50": ms(percentile(sorted(metrics.itl_s), 50)),
        "computed": tracked.computed,
        "target": tracked.target or tracked.prompt_tokens,
        "cached": tracked.cached + tracked.shared,
        "reason": str(stream.finish_reason) if stream.finish_reason else None,
        "error": stream.error,
    }


def state_of(tracked: TrackedRequest) -> AnswerState:
    """Returns ``waiting`` for the first token from another server, which does not report whether it has begun."""
    reason = tracked.stream.finish_reason
    if reason is not None:
        return "stopped" if reason is FinishReason.ABORT else "error" if reason is FinishReason.ERROR else "done"
    if tracked.stopping:
        return "stopping"
    if tracked.stream.metrics.completion_tokens:
        return "decode"
    if tracked.stream.metrics.sent_ns is not None:
        return "waiting"
    return "prefill" if tracked.target else "queued"
