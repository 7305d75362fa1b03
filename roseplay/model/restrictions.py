"""Changes which tokens may be drawn: logit bias, allowed tokens, bad words, and a least length of the answer.

All depend on the request and its tokens alone, so it draws the same ones whatever it is batched with. On a GPU nothing here
waits for the device: whether the last token, which may be known there only, ends all but one token of a bad word is decided
on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from roseplay.core.request import PLACEHOLDER
from roseplay.model.batch import Drawn
from roseplay.model.drawing import Drawing
from roseplay.model.upload import to_device

_NEVER = float("-inf")


def is_restricted(request: Drawing) -> bool:
    """Returns whether ``restricted`` changes the request's logits."""
    params = request.sampling
    return bool(params.logit_bias or params.allowed_token_ids or request.bad_words) or _is_short(request)


def restricted(logits: torch.Tensor, requests: Sequence[Drawing], drawn: Drawn | None = None) -> torch.Tensor:
    """Returns a copy of ``logits [rows, vocabulary]`` in float32 with biases added, and -inf for tokens that must not be drawn.

    Args:
        drawn: tokens drawn by the previous step, for requests that end with a placeholder.
    """
    logits = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    device, vocabulary, flat = logits.device, logits.shape[-1], logits.view(-1)
    rows = list(enumerate(requests))
    biases = [(row * vocabulary + token, bias) for row, r in rows for token, bias in r.sampling.logit_bias]
    if biases:
        biased, values = zip(*biases, strict=True)
        flat.scatter_add_(0, to_device(biased, torch.int64, device), to_device(values, torch.float32, device))
    if narrow := [row for row, request in rows if request.sampling.allowed_token_ids]:
        allowed = [row * vocabulary + token for row in narrow for token in requests[row].sampling.allowed_token_ids]
        places = to_device(allowed, torch.int64, device)
        kept = flat.gather(0, places)
        logits.index_fill_(0, to_device(narrow, torch.int64, device), _NEVER)
        flat.scatter_(0, places, kept)
    _forbid_bad_words(flat, rows, vocabulary, drawn)
    if short := [row for row, request in rows if _is_short(request)]:
        _forbid_ends(logits, short, [requests[row] for row in short])
    return logits


def _is_short(request: Drawing) -> bool:
    """Returns whether the answer must go on after the token that is drawn next."""
    return request.num_tokens - request.num_prompt_tokens < request.sampling.min_new_tokens and bool(
        request.eos_token_ids
    )


def _forbid_ends(logits: torch.Tensor, rows: list[int], requests: Sequence[Drawing]) -> None:
    """Forbid the tokens that end these answers, unless nothing else can be drawn: a grammar may be complete."""
    device, vocabulary = logits.device, logits.shape[-1]
    ends = [(n, token) for n, request in enumerate(requests) for token in request.eos_token_ids if token < vocabulary]
    numbers, tokens = to_device(ends, torch.int64, device).reshape(-1, 2).unbind(1)
    index = to_device(rows, torch.int64, device)
    longer = logits.index_select(0, index)
    ending = longer[numbers, tokens]
    longer[numbers, tokens] = _NEVER
    only = longer.amax(-1).index_select(0, numbers) == _NEVER
    longer[numbers, tokens] = torch.where(only, ending, _NEVER)
    logits.index_copy_(0, index, longer)


def _forbid_bad_words(
    flat: torch.Tensor, rows: Sequence[tuple[int, Drawing]], vocabulary: int, drawn: Drawn | None
) -> None:
    """Forbid the last token of each bad word whose other tokens the answer ends with."""
    device = flat.device
    ends, late, before, source = list[int](), list[int](), list[int](), list[int]()
    for row, request in rows:
        for word, is_late in _about_to_end(request) if request.bad_words else ():
            place = row * vocabulary + word[-1]
            if not is_late:
                ends.append(place)
            elif drawn is not None:
                late.append(place)
                before.append(word[-2])
                source.append(drawn.row_of[request.request_id])
    if ends:
        flat.index_fill_(0, to_device(ends, torch.int64, device), _NEVER)
    if drawn is not None and late:
        places, wanted, at = to_device([late, before, source], torch.int64, device)
        flat.scatter_add_(0, places, torch.where(drawn.select(at) == wanted, _NEVER, 0.0))


def _about_to_end(request: Drawing) -> Iterator[tuple[Sequence[int], bool]]:
    """Yields the bad words of which all tokens but the last are at the answer's end, and whether one is a placeholder."""
    most = min(max(map(len, request.bad_words)) - 1, request.num_tokens - request.num_prompt_tokens)
    tail = request.token_ids[request.num_tokens - most :]
    is_late = bool(tail) and tail[-1] == PLACEHOLDER
    for word in request.bad_words:
        count = len(word) - 1
        if count <= most and all(
            token in (expected, PLACEHOLDER)
            for token, expected in zip(tail[len(tail) - count :], word[:-1], strict=True)
        ):
            yield word, is_late and count > 0
