"""Random numbers that depend on (seed, position, token id) and on nothing else.

With a stateful generator, the tokens that a request draws would depend on its batch. Here each number is a hash (a
counter-based generator, after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the request's seed
and the position of the drawn token are hashed to two 32-bit keys (splitmix64), which are hashed with the token id by
Chris Wellons' 32-bit finaliser "lowbias32". The integers are equal on every device; the logarithms that turn them
into Gumbel noise may differ in the last bit.
"""

from __future__ import annotations

import functools

import torch

_MASK64 = (1 << 64) - 1


def row_keys(seed: int, position: int) -> tuple[int, int]:
    """Returns a row's two signed 32-bit keys, from its request's seed (any integer) and the drawn token's position."""
    mixed = _splitmix64(_splitmix64(seed & _MASK64) ^ ((position * 0xD1342543DE82EF95) & _MASK64))
    return _signed(mixed >> 32), _signed(mixed & 0xFFFFFFFF)


def gumbel(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Returns Gumbel noise, float32 ``[rows, vocab_size]``: argmax(logits + noise) is a sample from their softmax.

    Args:
        keys: int32 ``[rows, 2]``, from ``row_keys``.
    """
    return _gumbel(_scrambled_token_ids(vocab_size, keys.device) ^ keys[:, :1], keys[:, 1:])


def gumbel_of(keys: torch.Tensor, tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Returns the same noise for single ``tokens [n]``, float32 ``[n]``, given the ``keys [n, 2]`` of their rows."""
    return _gumbel(_scrambled_token_ids(vocab_size, keys.device)[tokens] ^ keys[:, 0], keys[:, 1])


def _gumbel(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    _lowbias32(x, key)
    x = _shift_right(x, 9)  # 23 bits: adding 0.5 is exact in float32, so 0 and 1 never occur
    uniform = x.to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _splitmix64(x: int) -> int:
    """Returns one step of Steele, Lea and Flood's splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int32 right logically; torch's own shift is arithmetic."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _lowbias32(x: torch.Tensor, key: torch.Tensor | int) -> None:
    """Hash int32 in place, mixing in a key halfway; products wrap around."""
    x ^= _shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= key
    x ^= _shift_right(x, 15)
    x *= _signed(0x846CA68B)
    x ^= _shift_right(x, 16)


@functools.lru_cache(maxsize=8)
def _scrambled_token_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    x = torch.arange(1, vocab_size + 1, dtype=torch.int32, device=device)
    _lowbias32(x, 0)
    return x
