"""Prompt lookup: the tokens that a request may draw next are guessed from its own text, and checked in the same step.

If the last ``ngram`` tokens occur earlier in the prompt or the answer, the tokens that followed them there are the draft.
A step computes it after the request's last token, and draws a token after each of its tokens. As long as what is drawn is
what the draft says, the next token was computed from the right text. Since a token depends on its request's seed and its
position, not on the step that draws it, the answer is the same as without drafts. From Saxena, "Prompt Lookup Decoding"
(2023), which vLLM calls ngram speculation.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

# The estimate of how many guesses are right: its first value, the weight of each new guess, and its largest value.
_FIRST, _WEIGHT, _MOST = 0.5, 0.15, 0.98
# By how much more a token must save than it costs: large steps take longer than in proportion to their tokens.
_MARGIN = 4 / 3


class PromptLookup:
    """Guesses the next tokens of one request.

    A guess is made for every token, whether or not a step computes it as a draft, so that the rate of right guesses is
    known at no cost. A guess that was right is continued behind it, as its match is the longest.

    The index takes about 200 bytes for each token of the request, and a step of one token 2 µs.

    Attributes:
        ngram: number of tokens that must occur earlier.
        hit_rate: the estimated share of guesses that are right.
    """

    __slots__ = ("_guess", "_num_indexed", "_num_read", "_places", "hit_rate", "ngram")

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram
        self.hit_rate = _FIRST
        self._places: dict[tuple[int, ...], int] = {}  # of n-grams: the position after the last occurrence
        self._num_indexed = self._num_read = 0
        self._guess: int | None = None  # the position of the token that is expected next

    def read(self, token_ids: Sequence[int]) -> None:
        """Take the tokens that are new since the last call, and guess which token is next."""
        count = len(token_ids)
        for position in range(self._num_read, count) if self._num_read else ():
            if self._guess is not None:
                hit = token_ids[self._guess] == token_ids[position]
                self.hit_rate = min(_MOST, self.hit_rate + _WEIGHT * (hit - self.hit_rate))
                self._guess = self._guess + 1 if hit else None
        self._num_read = count
        self._index(token_ids, count)
        if self._guess is None:
            self._guess = self._places.get(tuple(token_ids[count - self.ngram :]))

    def _index(self, token_ids: Sequence[int], end: int) -> None:
        """Index the n-grams that are followed by a token before ``end``."""
        n, begin = self.ngram, max(self.ngram, self._num_indexed)
        if begin >= end:
            return
        ngrams = zip(*(token_ids[begin - n + i : end - n + i] for i in range(n)), strict=True)
        self._places.update(zip(ngrams, range(begin, end), strict=True))
        self._num_indexed = end

    def draft(self, token_ids: Sequence[int], most: int, least_likely: float) -> Sequence[int]:
        """Returns at most ``most`` of the guessed tokens, as long as they are right with probability ``least_likely``.

        A guess that reaches the end of the text goes on with what it guessed itself: the text repeats.
        """
        if self._guess is None or most <= 0 or self.hit_rate <= least_likely:
            return ()
        if least_likely > 0:
            most = min(most, int(math.log(least_likely) / math.log(self.hit_rate)))
        guess = token_ids[self._guess : self._guess + most]
        return (list(guess) * (-(-most // len(guess))))[:most]


def least_likely(token_cost: float, num_decodes: int) -> float:
    """Returns how likely a draft's token must be to be worth computing.

    A token of a draft takes ``token_cost``. If it is right, it saves what a token takes in a step without drafts,
    ``token_cost + 1 / num_decodes``. The quotient, with a margin, is small while few requests run. It rises with their
    number, until nothing is worth guessing.

    Args:
        token_cost: time that a further token adds to a step, relative to a step of one token.
    """
    return _MARGIN * token_cost * num_decodes / (1 + token_cost * num_decodes)


def accepted(draft: Sequence[int], drawn: Sequence[int]) -> Sequence[int]:
    """Returns the drawn tokens that plain decoding would draw: up to the first that is not what the draft says.

    Args:
        drawn: the tokens drawn after the last known token and after each token of the draft.
    """
    right = sum(1 for _ in itertools.takewhile(bool, map(operator.eq, draft, drawn)))
    return drawn[: right + 1]
