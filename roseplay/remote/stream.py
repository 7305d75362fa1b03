"""A stream whose tokens' ids are not known: text in pieces, as a server sends it."""

from __future__ import annotations

from collections.abc import Callable

from roseplay.config import SamplingParams
from roseplay.engine.detokenizer import NoDecoder
from roseplay.engine.request_metrics import ServerTimes
from roseplay.engine.stream import Listener, Stream
from roseplay.remote.chunk import Usage


class HttpStream(Stream):
    """The answer of a server.

    What arrives are pieces of text. Where the server says how many tokens a piece holds, each has its time in
    ``token_times_ns``, the same for all of a piece, and its end in ``text_ends``, likewise; elsewhere a piece counts as one
    token. ``token_ids`` stays empty. At the end ``metrics.completion_tokens`` has the server's own number, where it gives
    one; until then ``metrics.prompt_tokens`` is 0 unless the prompt was token ids.
    """

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        cancel: Callable[[int], bool],
        submitted_ns: int,
        listener: Listener | None = None,
    ) -> None:
        super().__init__(request_id, prompt_token_ids, params, NoDecoder(), cancel, submitted_ns, listener)

    def push_piece(self, text: str, time_ns: int, tokens: int) -> None:
        """Take a piece of the answer."""
        self.text += text
        for _ in range(tokens):
            self.metrics.took(time_ns)
            self.text_ends.append(len(self.text))
            self.token_times_ns.append(time_ns)

    def correct(self, usage: Usage | None, times: ServerTimes | None) -> None:
        """Take over what the server counted and measured, before the stream is finished.

        It is not believed that an answer has more tokens than were asked for.
        """
        if usage is not None:
            self.metrics.prompt_tokens = self.computed_prompt_tokens = usage.prompt
            self.metrics.completion_tokens = min(usage.completion, self.params.max_new_tokens)
            self.metrics.cached_tokens = min(usage.cached or 0, usage.prompt)
        self.metrics.server = times or self.metrics.server
