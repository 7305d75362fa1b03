"""The shape of one serving topic: the facts that every question about it is answered from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """What tiny-chat may say about one subject.

    `names` are the ways a user writes it in mid-sentence. `define` holds whole one-sentence definitions,
    `details` sentences that stand alone after a definition, `simple` explanations for a child.
    `keywords` (lower case) decide in the evaluation whether an answer is on topic: one must occur.
    """

    key: str
    names: tuple[str, ...]
    define: tuple[str, ...]
    details: tuple[str, ...]
    why: tuple[str, ...]
    example: tuple[str, ...]
    simple: tuple[str, ...]
    keywords: tuple[str, ...]
