"""A stream without token ids: text in pieces, as a server sends it."""

from __future__ import annotations

from roseplay.engine.request_metrics import ServerTimes
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import TokenEvent
from roseplay.extras.servers.chunk import Usage

UNKNOWN_ID = -1


class HttpStream(Stream):
    """A server's answer.

    It arrives in pieces of text. If the server reports how many tokens a piece has, all of them get the piece's time in
    ``token_times_ns`` and its end in ``text_ends``; otherwise a piece counts as one token. ``token_ids`` stays empty.
    At the end ``metrics.completion_tokens`` has the server's own number, if it reports one; until then
    ``metrics.prompt_tokens`` is 0 unless the prompt was token ids.

    Attributes:
        published: how many of its tokens are in the telemetry.
        in_steps: whether the server's steps tell of its tokens.
    """

    published = 0
    in_steps = False

    def push_piece(self, text: str, time_ns: int, tokens: int) -> None:
        self.text += text
        for _ in range(tokens):
            self.metrics.took(time_ns)
            self.text_ends.append(len(self.text))
            self.token_times_ns.append(time_ns)

    def unpublished(self) -> list[TokenEvent]:
        """Returns the tokens that have arrived since the last call; from now on they count as published."""
        begin, self.published = self.published, max(self.published, self.num_tokens)
        gaps, times = self.metrics.itl_ns, self.token_times_ns
        return [
            TokenEvent(self.request_id, UNKNOWN_ID, times[place], gaps[place - 1] if place else None)
            for place in range(begin, self.published)
        ]

    def correct(self, usage: Usage | None, times: ServerTimes | None) -> None:
        """Take over the server's counts and times before the stream is finished.

        A completion count is capped at the number of tokens asked for.
        """
        if usage is not None:
            self.metrics.prompt_tokens = self.computed_prompt_tokens = usage.prompt
            self.metrics.completion_tokens = min(usage.completion, self.params.max_new_tokens)
            self.metrics.cached_tokens = min(usage.cached or 0, usage.prompt)
        self.metrics.server = times or self.metrics.server
