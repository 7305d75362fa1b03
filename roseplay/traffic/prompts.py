"""Prompts for a workload: text if the engine or a server has a tokenizer, else token ids of exact lengths.

A prompt is a shared head, a body repeated some number of times and, where prompts must differ, a tail of its own. The
four kinds of burst are settings of these three, see ``KINDS``.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from roseplay.engine.engine_like import HasTokenizer
from roseplay.traffic.lengths import estimated_tokens

Prompt = str | list[dict[str, str]] | list[int]
_MOST_SCALINGS = 8

HEAD_SENTENCES = (
    "Answer in plain words and keep to the question.",
    "Say so when something is not known.",
    "Prefer a short example to a long rule.",
    "Name the unit of every number.",
    "Do not repeat the question.",
    "Write for a reader who has a minute.",
    "Use one idea for each sentence.",
    "End when the question is answered.",
)


# Requests take these in turn; a small model can answer all of them.
QUESTIONS = (
    "What is a KV block and why is the cache cut into blocks?",
    "What does the prefix cache do for a prompt that comes back?",
    "Why does inter-token latency spike when a burst arrives?",
    "What is chunked prefill and what does it cost?",
    "Tell me a short story about a fox who finds a lantern.",
    "What does the scheduler do in each step?",
    "When is a request preempted and what happens to its blocks?",
    "List three ways to make the first token come sooner.",
)


class PromptSource(Protocol):
    """Makes the prompt of request ``index``; the same arguments give the same prompt."""

    def prompt(self, index: int, *, repeats: int = 1, unique: bool = False, head_tokens: int = 0) -> Prompt: ...

    def with_body(self, text: str) -> PromptSource:
        """Returns the same source with this text as the body of all prompts."""
        ...


class Encoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class EstimatedTokens:
    """Stands in for a server's tokenizer, which is not available here: assumes a number of characters per token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * estimated_tokens(text)


class TextPrompts:
    """Prompts as text.

    Args:
        bodies: one text, or several that requests take in turn.
        tokenizer: measures shared heads; needed only for them.
        chat: return each text as a user's chat message, for the model's chat template.
        seed: shuffles the sentences of the shared head.
    """

    def __init__(
        self, bodies: str | Sequence[str], *, tokenizer: Encoder | None = None, chat: bool = False, seed: int = 0
    ) -> None:
        self._bodies = (bodies,) if isinstance(bodies, str) else tuple(bodies)
        if not self._bodies or not all(self._bodies):
            raise ValueError("the prompt is empty: give some text")
        self._tokenizer = tokenizer
        self._chat = chat
        self._seed = seed
        self._heads: dict[int, str] = {}

    def prompt(
        self, index: int, *, repeats: int = 1, unique: bool = False, head_tokens: int = 0
    ) -> str | list[dict[str, str]]:
        """Returns the prompt of request ``index``: ``head body body … [index]``, joined by spaces.

        ``[index]`` is only added if ``unique`` is set, and not while there are enough bodies to tell prompts apart.
        """
        parts = [self.head(head_tokens)] if head_tokens else []
        parts += [self._bodies[index % len(self._bodies)]] * repeats
        if unique and not (len(self._bodies) > 1 and index < len(self._bodies)):
            parts.append(f"[{index}]")
        text = " ".join(parts)
        return [{"role": "user", "content": text}] if self._chat else text

    def with_body(self, text: str) -> TextPrompts:
        return TextPrompts(text, tokenizer=self._tokenizer, chat=self._chat, seed=self._seed)

    def head(self, num_tokens: int) -> str:
        """Returns the fewest words, in sentences, that have at least ``num_tokens`` tokens.

        Raises:
            ValueError: there is no tokenizer to count with.
        """
        if self._tokenizer is None:
            raise ValueError("a shared head is measured in tokens: give a tokenizer, or use TokenPrompts")
        if num_tokens not in self._heads:
            self._heads[num_tokens] = self._grow_head(self._tokenizer, num_tokens)
        return self._heads[num_tokens]

    def _grow_head(self, tokenizer: Encoder, num_tokens: int) -> str:
        rng = random.Random(f"head {self._seed}")
        words: list[str] = []
        while len(words) < num_tokens:  # a word is at least one token; the number needed is searched below
            sentences = list(HEAD_SENTENCES)
            rng.shuffle(sentences)
            words += " ".join(sentences).split()

        def count(num_words: int) -> int:
            return len(tokenizer.encode(" ".join(words[:num_words]), add_special_tokens=False))

        enough = 1 + bisect_left(range(1, len(words)), num_tokens, key=count)
        return " ".join(words[:enough])


class TokenPrompts:
    """Prompts as token ids, for a model without a tokenizer; every part has an exact length.

    Args:
        vocab_size: ids are below it.
        body_tokens: length of the body.
        tail_tokens: length of the tail that makes a prompt unique.
        seed: of the ids.
    """

    def __init__(self, vocab_size: int, *, body_tokens: int = 1, tail_tokens: int = 3, seed: int = 0) -> None:
        if vocab_size < 2:
            raise ValueError(f"vocab_size is {vocab_size}: synthetic prompts need at least 2 token ids")
        if body_tokens < 1 or tail_tokens < 1:
            raise ValueError("body_tokens and tail_tokens must be at least 1")
        self._vocab_size = vocab_size
        self._tail_tokens = tail_tokens
        self._seed = seed
        self._body = self._draw("body", body_tokens)

    def prompt(self, index: int, *, repeats: int = 1, unique: bool = False, head_tokens: int = 0) -> list[int]:
        """Returns ``head_tokens + repeats * body_tokens (+ tail_tokens)`` ids for request ``index``."""
        token_ids = self._draw("head", head_tokens) + self._body * repeats
        if unique:
            token_ids += self._tail(index)
        return token_ids

    def with_body(self, text: str) -> TokenPrompts:
        """Returns a source whose bodies have as many tokens as the text has words."""
        words = max(1, len(text.split()))
        return TokenPrompts(self._vocab_size, body_tokens=words, tail_tokens=self._tail_tokens, seed=self._seed)

    def _tail(self, index: int) -> list[int]:
        # The index in base vocab_size, so that tails are certain to differ.
        tail = []
        for _ in range(self._tail_tokens):
            index, digit = divmod(index, self._vocab_size)
            tail.append(digit)
        if index:
            raise ValueError(f"{self._tail_tokens} tail tokens are too few to make this many prompts differ: use more")
        return tail

    def _draw(self, part: str, num_tokens: int) -> list[int]:
        rng = random.Random(f"{part} {self._seed}")
        return [rng.randrange(self._vocab_size) for _ in range(num_tokens)]


@dataclass(frozen=True, kw_only=True)
class PromptMix:
    """How the prompts of a workload relate to each other."""

    repeats: tuple[int, ...] = (1,)  # how often the body is repeated, taken in turn by the requests
    unique: bool = True  # each prompt ends differently
    head_tokens: int = 0  # length of the head that prompts share
    head_every: int = 1  # every how many prompts have the head, beginning with the first; 1 for all

    def __post_init__(self) -> None:
        if not self.repeats or any(count < 1 for count in self.repeats):
            raise ValueError(f"repeats are {self.repeats}: use integers of at least 1")
        if self.head_tokens < 0:
            raise ValueError(f"head_tokens is {self.head_tokens}: use 0 or more")
        if self.head_every < 1:
            raise ValueError(f"head_every is {self.head_every}: use at least 1")

    def scaled(self, factor: float) -> PromptMix:
        """Returns a mix with heads and repeats ``factor`` times as long, rounded down; bodies stay whole."""
        repeats = tuple(max(1, int(count * factor)) for count in self.repeats)
        return replace(self, repeats=repeats, head_tokens=int(self.head_tokens * factor))

    def of_mean_length(self, tokens: int, mean_tokens: Callable[[PromptMix], float]) -> PromptMix:
        """Returns the mix scaled so that its prompts' mean length is as near to ``tokens`` as whole bodies allow.

        Args:
            mean_tokens: returns the mean number of tokens in a mix's prompts.
        """
        best, factor, tried = self, 1.0, mean_tokens(self)
        nearest = abs(tried - tokens)
        for _ in range(_MOST_SCALINGS):
            factor *= tokens / tried
            mix = self.scaled(factor)
            tried = mean_tokens(mix)
            if abs(tried - tokens) < nearest:
                best, nearest = mix, abs(tried - tokens)
        return best

    def prompt(self, source: PromptSource, index: int) -> Prompt:
        """Returns the prompt of request ``index``."""
        return source.prompt(
            # Equal prompts are all the first one, even if there are several bodies.
            index if self.unique else 0,
            repeats=self.repeats[index % len(self.repeats)],
            unique=self.unique,
            head_tokens=self.head_tokens if index % self.head_every == 0 else 0,
        )

    def prompts(self, source: PromptSource, count: int) -> list[Prompt]:
        return [self.prompt(source, index) for index in range(count)]


KINDS: Mapping[str, PromptMix] = {
    "unique": PromptMix(),
    "equal": PromptMix(unique=False),
    "shared_head": PromptMix(head_tokens=512),
    "mix": PromptMix(repeats=(1, 1, 1, 64)),
}


def prompt_source(
    engine: HasTokenizer, bodies: str | Sequence[str], *, chat: bool = False, seed: int = 0
) -> TextPrompts | TokenPrompts:
    """Returns a source of prompts for an engine.

    Prompts are text if the engine has a tokenizer or is a server, whose token counts are estimated; otherwise ids, one
    for each word of the body.
    """
    tokenizer = engine.tokenizer if engine.info.tokenizes else EstimatedTokens()
    if tokenizer is not None:
        return TextPrompts(bodies, tokenizer=tokenizer, chat=chat, seed=seed)
    first = bodies if isinstance(bodies, str) else bodies[0]
    return TokenPrompts(engine.info.vocab_size, seed=seed).with_body(first)
