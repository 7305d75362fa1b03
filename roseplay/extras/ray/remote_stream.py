"""The stream from which the API reads an answer that a replica computes."""

from __future__ import annotations

from concurrent.futures import Future

from roseplay.core.request import FinishReason
from roseplay.engine.stream import Stream
from roseplay.extras.ray.messages import Part


class RemoteStream(Stream):
    """A stream made of parts. The replica has already decoded the text and looked for stop strings.

    Its times are on this process's clock: a part's arrival minus the age of its content. They include the network hop.

    Attributes:
        call: follows the answer.
        sendings: how often the request has been sent to a replica.
        grammar_bytes: memory that the answer's compiled grammar takes; it is checked, and no replica checks it again.
    """

    call: Future[None] | None = None
    sendings = 0
    grammar_bytes = 0

    def take(self, part: Part, now_ns: int) -> None:
        """Append what is new in a part that arrived at ``now_ns``; the last part ends the stream."""
        known = len(self.token_ids) - part.begin  # of the part's tokens
        if not 0 <= known <= len(part.token_ids):  # another carrier sends the missing tokens, or has sent these
            return
        metrics = self.metrics
        metrics.cached_tokens, metrics.shared_tokens = part.cached_tokens, part.shared_tokens
        metrics.num_preemptions = part.num_preemptions
        self.computed_prompt_tokens = part.computed_prompt_tokens
        if not self.token_ids:
            self.prompt_logprobs = part.prompt_logprobs
        self.logprobs += part.logprobs[known:]
        text_begin = self.text_ends[part.begin - 1] if part.begin else 0
        self.text += part.text[len(self.text) - text_begin :]
        self.text_ends += part.text_ends[known:]
        self.token_ids += part.token_ids[known:]
        for age_ns in part.ages_ns[known:]:  # last: see num_tokens
            self._note_time(now_ns - age_ns)
        if part.finish_reason is not None:
            self.finish(FinishReason(part.finish_reason), now_ns, part.error)
        else:
            self.notify()

    def _note_time(self, time_ns: int) -> None:
        last = self.metrics.last_token_ns
        time_ns = max(self.metrics.submitted_ns if last is None else last, time_ns)  # the hops of two parts may differ
        self.metrics.took(time_ns)
        self.token_times_ns.append(time_ns)
