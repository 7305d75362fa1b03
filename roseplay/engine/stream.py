"""One request as its sender sees it: text and tokens as they arrive, the reason why it ended, and its times."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import NamedTuple

from roseplay.config import SamplingParams
from roseplay.core.cache_miss import Miss
from roseplay.core.request import FinishReason
from roseplay.core.step import TokenLogprobs
from roseplay.engine.detokenizer import Decoder, NoDecoder, StopStrings
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.engine.wakeups import wakeups

logger = logging.getLogger(__name__)

Listener = Callable[["Stream"], None]


class Chunk(NamedTuple):
    """What arrived since the last chunk: text, the tokens' ids, and when each was published (ns)."""

    text: str
    token_ids: list[int]
    times_ns: list[int]


class Stream:
    """The answer to one request; iterate it, or wait for ``result()``.

    Iterating (``for`` or ``async for``) yields what has arrived since the last chunk, and ends with the request. Only
    one reader may iterate; ``text``, ``token_ids`` and ``metrics`` may be read from any thread at any time.
    ``text_ends[i]`` is the length of the text after token i; text that is held back (half a character) comes with a
    later token. ``miss`` says why the first prompt token that had to be computed was not cached; ``None`` before
    that, or if all were cached. ``prompt_logprobs``, if requested, has ``None`` for the first token, and is complete
    once the answer has a token.
    """

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        cancel: Callable[[int], bool],
        submitted_ns: int,
        listener: Listener | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.text = ""
        self.text_ends: list[int] = []
        self.token_ids: list[int] = []
        self.token_times_ns: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = [] if params.prompt_logprobs is None else [None]
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.metrics = RequestMetrics(submitted_ns, len(prompt_token_ids))
        self.computed_prompt_tokens = 0
        self.miss: Miss | None = None
        self._decoder = decoder or NoDecoder()  # the text may be decoded elsewhere
        self._stop = StopStrings(params.stop, shown=params.include_stop_str_in_output)
        self._cancel: Callable[[int], bool] | None = cancel
        self._listener = listener
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], object]] = []
        self._read_text = 0
        self._read_tokens = 0
        self._last_ns: list[int] = []  # the last token's time, until the end is known to readers as well

    # -- for the receiver thread

    def push(
        self,
        token_id: int,
        time_ns: int,
        logprobs: TokenLogprobs | None = None,
        is_stop: bool = False,
        *,
        is_last: bool = False,
    ) -> bool:
        """Take a token, without its text if it is a stop token; returns whether it completed a stop string.

        Readers get a token that completes one, or ``is_last``, together with the end.
        """
        if not is_stop or self.params.include_stop_str_in_output:
            text = self._decoder.push(token_id)
            self.text += text if len(self.token_ids) < self.params.min_new_tokens else self._stop.push(text)
        self.text_ends.append(len(self.text))
        if logprobs is not None:
            self.logprobs.append(logprobs)
        self.token_ids.append(token_id)
        self.metrics.took(time_ns)
        times_ns = self._last_ns if is_last or self._stop.hit else self.token_times_ns
        times_ns.append(time_ns)  # last: see num_tokens
        return self._stop.hit

    def finish(self, reason: FinishReason, time_ns: int, error: str | None = None) -> None:
        if self.finish_reason is not None:
            return
        try:
            self._flush()
        except BaseException as failure:  # the stream ends all the same
            logger.exception("the last text of request %d could not be decoded", self.request_id)
            reason, error = FinishReason.ERROR, error or decoding_failed(failure)
        self.error = error
        self.metrics.finished_ns = time_ns
        with self._changed:
            self.token_times_ns += self._last_ns
            self.finish_reason = reason
        self._cancel = None  # so that an ended stream does not keep its engine alive
        self.notify()

    def _flush(self) -> None:
        """Append the text that was held back."""
        if not self._stop.hit:
            self.text += self._stop.push(self._decoder.flush())
            if not self._stop.hit:
                self.text += self._stop.flush()

    def notify(self) -> None:
        """Wake all readers that wait for this stream."""
        with self._changed:
            self._changed.notify_all()
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            with contextlib.suppress(RuntimeError):  # the reader's event loop was closed
                wake()
        if self._listener is not None:
            try:
                self._listener(self)
            except BaseException:  # a faulty listener must not stop other streams
                logger.exception("a listener of request %d failed", self.request_id)

    # -- for the reader

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """The number of tokens that can be read together with their text and times; times are appended last."""
        return len(self.token_times_ns)

    def cancel(self) -> bool:
        """Abort the request; returns ``False`` if it has already ended."""
        cancel = self._cancel
        return cancel is not None and cancel(self.request_id)

    def result(self, timeout: float | None = None) -> Stream:
        """Wait until the request has ended, and return this stream.

        Raises:
            TimeoutError: it did not end within ``timeout`` seconds; the request continues.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.finished, timeout):
                raise TimeoutError(f"request {self.request_id} did not finish within {timeout} s")
        return self

    def wait_for_first_token(self, timeout: float | None = None) -> bool:
        """Wait for a token or the end of the request; returns ``False`` after ``timeout`` seconds without either."""
        with self._changed:
            return self._changed.wait_for(lambda: self.finished or self.num_tokens > 0, timeout)

    @property
    def exhausted(self) -> bool:
        """Whether the request has ended and its reader has all of its text and tokens."""
        read = (self._read_tokens, self._read_text)
        return self.finished and read == (self.num_tokens, len(self.text))

    def _take(self) -> tuple[Chunk | None, bool]:
        """Returns what is new, including held-back text if the request has ended, and whether it has ended."""
        with self._changed:
            ended, count = self.finished, self.num_tokens
        end = len(self.text) if ended else self.text_ends[count - 1] if count else 0
        begin, text_begin = self._read_tokens, self._read_text
        if (begin, text_begin) == (count, end):
            return None, ended
        self._read_tokens, self._read_text = count, end
        new = slice(begin, count)
        return Chunk(self.text[text_begin:end], self.token_ids[new], self.token_times_ns[new]), ended

    def _has_news(self) -> bool:
        return self.finished or self.num_tokens > self._read_tokens

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_news)
            chunk, ended = self._take()
            if chunk is not None:
                yield chunk
            if ended:
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        news = asyncio.Event()
        wake = partial(wakeups().wake, news)
        while True:
            with self._changed:
                waiting = not self._has_news()
                if waiting:
                    news.clear()
                    self._wakers.append(wake)
            if waiting:
                await news.wait()
            chunk, ended = self._take()
            if chunk is not None:
                yield chunk
            if ended:
                return

    def __repr__(self) -> str:
        return f"Stream({self.request_id}, {len(self.token_ids)} tokens, {self.finish_reason or 'running'})"


def decoding_failed(error: BaseException) -> str:
    """Returns the error of a request whose tokens could not be decoded."""
    return f"the answer could not be decoded ({type(error).__name__}: {error})".split("\n", 1)[0]
