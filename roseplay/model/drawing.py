"""What a token is drawn for: a request after its last token, or after a part of its draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roseplay.config import SamplingParams
from roseplay.core.request import Request


class Drawing(Protocol):
    """What drawing a token reads of its request. The token's position is ``num_tokens``."""

    @property
    def request_id(self) -> int: ...
    @property
    def sampling(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def bad_words(self) -> Sequence[Sequence[int]]: ...


class _AfterDraft:
    """A request as it is once it has drawn the tokens of ``draft``."""

    __slots__ = (
        "_draft", "_request", "bad_words", "eos_token_ids", "num_prompt_tokens", "num_tokens", "request_id", "sampling", "seed",
    )  # fmt: skip

    def __init__(self, request: Request, draft: Sequence[int]) -> None:
        self._request, self._draft = request, draft
        self.request_id, self.sampling, self.seed = request.request_id, request.sampling, request.seed
        self.eos_token_ids, self.bad_words = request.eos_token_ids, request.bad_words
        self.num_tokens, self.num_prompt_tokens = request.num_tokens + len(draft), request.num_prompt_tokens

    @property
    def token_ids(self) -> list[int]:
        return [*self._request.token_ids, *self._draft]


def after_draft(request: Request, draft: Sequence[int]) -> Drawing:
    """Returns what to draw the token for that follows the request's tokens and then ``draft``."""
    return _AfterDraft(request, draft) if draft else request
