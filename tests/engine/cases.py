"""The same requests in many settings: as few engines as possible, and answers compared with those of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch

from roseplay import Engine, Knobs
from roseplay.engine.stream import Stream
from roseplay.settings import settings_of
from tests.engine.greedy import assert_greedy, assert_same_until_a_tie
from tests.model.families import VOCABULARY

KNOBS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"prefill_max_tokens": 7},
    "unchunked": {"prefill_max_tokens": 7, "chunked_prefill": False},
    "one at a time": {"max_batch_size": 1},
    "not shared": {"prefix_cache": False, "same_step_sharing": False},
    "one append a request": {"batched_append": False},
    "few tokens a step": {"step_max_tokens": 5},
}


def prompts() -> list[list[int]]:
    """Lengths around blocks of 4 and windows of 8, with common prefixes and an exact repeat."""
    generator = torch.Generator().manual_seed(3)
    head = torch.randint(3, VOCABULARY, (17,), generator=generator).tolist()
    made = [
        torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (1, 3, 4, 5, 11, 19, 24)
    ]
    return [*made, [*head, 5], [*head, 6, 7], made[5]]


def engines_of(
    cases: dict[str, dict[str, Any]], model: Any, open_engine: Callable[..., Engine] = Engine, **settings: Any
) -> Iterator[tuple[str, Engine]]:
    """Yields each case and an engine with its settings and an empty cache; cases that differ only in knobs share it."""
    knob_names = settings_of(Knobs).keys()
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for case, changes in cases.items():
        fixed = json.dumps({name: value for name, value in changes.items() if name not in knob_names})
        groups.setdefault(fixed, {})[case] = {name: value for name, value in changes.items() if name in knob_names}
    for fixed, members in groups.items():
        with open_engine(model, **{"block_size": 4, **settings, **json.loads(fixed)}) as engine:
            usual = engine.knobs.to_dict()
            for case, knobs in members.items():
                engine.set_knobs(**{**usual, **knobs})
                engine.clear_cache()
                yield case, engine


def check_answer(model: torch.nn.Module, stream: Stream, expected: list[int], case: str = "") -> None:
    """A greedy answer is that of ``generate``, or differs first where the best two tokens are nearly as likely."""
    assert stream.error is None, (case, stream.error)
    assert len(stream.token_ids) == len(expected), case
    if stream.token_ids != expected:
        assert_greedy(model, stream.prompt_token_ids, stream.token_ids)
        assert_same_until_a_tie(model, stream.prompt_token_ids, stream.token_ids, expected)
