"""From samples to batches: token ids, how much each of them counts in the loss, and batches of similar length."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizer import BOS, CONTEXT, END, EOS, ROLES
from transformers import PreTrainedTokenizerFast

from corpus.conversations import Conversation

_USER_WEIGHT = 0.1  # enough that the model goes on like a chat if the engine ignores EOS
_LONG_MESSAGE = 300  # characters; longer questions carry a head or a pasted text, which is not worth learning


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
        ids = ids + [self._id[EOS]]
        if len(ids) % 2:
            ids = [self._id[BOS]] + ids
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
    """Yield (ids, weights), both [rows, length], with about `tokens` tokens each and rows of similar length.

    Every row starts at position 0, as it will in use; padding stands at the end and weighs nothing.
    """
    samples = samples[:]
    rng.shuffle(samples)
    for start in range(0, len(samples), 4096):
        group = sorted(samples[start:start + 4096], key=lambda sample: len(sample.ids))
        rows: list[list[Encoded]] = [[]]
        for sample in group:
            if rows[-1] and (len(rows[-1]) + 1) * len(sample.ids) > tokens:
                rows.append([])
            rows[-1].append(sample)
        rng.shuffle(rows)
        for batch in rows:
            yield _pad(batch)


def _pad(batch: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    weights = torch.zeros(len(batch), length)
    for row, sample in enumerate(batch):
        ids[row, :len(sample.ids)] = torch.tensor(sample.ids)
        weights[row, :len(sample.ids)] = torch.tensor(sample.weights)
    return ids, weights
