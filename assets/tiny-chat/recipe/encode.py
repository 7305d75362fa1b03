"""From samples to batches: token ids, how much each of them counts in the loss, and batches of similar length."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from corpus.conversations import Conversation
from tokenizer import BOS, CONTEXT, END, EOS, ROLES
from transformers import PreTrainedTokenizerFast

_USER_WEIGHT = 0.1  # enough that the model goes on like a chat if the engine ignores EOS
_LONG_MESSAGE = 300  # characters; longer questions carry a head or a pasted text, which is not worth learning

_LENGTH_STEP = 32


@dataclass(frozen=True)
class Encoded:
    """Token ids and their weights in the loss, of equal length."""

    ids: list[int]
    weights: list[float]


class Encoder:
    """Turns samples into tokens exactly as the chat template does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer
        self._id = {token: tokenizer.convert_tokens_to_ids(token) for token in (BOS, EOS, END, *ROLES.values())}

    def __call__(self, samples: list[Conversation | str]) -> list[Encoded]:
        """Encode samples; what lies beyond the context length is cut off."""
        flat = [text for s in samples for text in ([s] if isinstance(s, str) else [m["content"] for m in s])]
        pieces = iter(self._tokenizer(flat, add_special_tokens=False)["input_ids"])
        return [self._plain(next(pieces)) if isinstance(s, str) else self._chat(s, pieces) for s in samples]

    def _plain(self, ids: list[int]) -> Encoded:
        ids = [*ids, self._id[EOS]]
        if len(ids) % 2:
            ids = [self._id[BOS], *ids]
        return Encoded(ids[:CONTEXT], [1.0] * min(len(ids), CONTEXT))

    def _chat(self, sample: Conversation, pieces: Iterator[list[int]]) -> Encoded:
        ids, weights = [self._id[BOS]], [0.0]
        for message in sample:
            body = [*next(pieces), self._id[END]]
            asked = message["role"] == "user" and len(message["content"]) < _LONG_MESSAGE
            weight = 1.0 if message["role"] == "assistant" else _USER_WEIGHT if asked else 0.0
            ids += [self._id[ROLES[message["role"]]], *body]
            weights += [_USER_WEIGHT, *[weight] * len(body)]
        return Encoded(ids[:CONTEXT], weights[:CONTEXT])


def batches(samples: list[Encoded], tokens: int, rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (ids, weights), both [rows, length], with at most `tokens` tokens and rows of similar length.

    Every row starts at position 0, as it will in use; padding stands at the end and weighs nothing. Lengths are
    multiples of 32, because each new shape costs time: the CPU kernels are built for one shape at a time.
    """
    waiting: dict[int, list[Encoded]] = {}
    for sample in rng.sample(samples, len(samples)):
        length = -(-len(sample.ids) // _LENGTH_STEP) * _LENGTH_STEP
        row = waiting.setdefault(length, [])
        row.append(sample)
        if len(row) == max(1, tokens // length):
            yield _pad(waiting.pop(length), length)
    yield from (_pad(row, length) for length, row in waiting.items())


def _pad(batch: list[Encoded], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, sample in enumerate(batch):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        weights[row, : len(sample.ids)] = torch.tensor(sample.weights)
    return ids, weights
