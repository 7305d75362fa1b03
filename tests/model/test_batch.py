"""Packing a step into a batch: the position of each token, and inconsistent steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roseplay.config import SamplingParams
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.core.step import Step, StepEntry
from roseplay.model.batch import Drawn, PagedBatch, build_batch, pack_step


def request(i: int, tokens: list[int], blocks: list[int]) -> Request:
    made = Request(i, tokens, SamplingParams())
    made.block_table = blocks
    return made


def build(*entries: StepEntry, wanted: list[int] | None = None, **fields: Any) -> PagedBatch | None:
    return build_batch(
        Step(0, list(entries), **fields),
        wanted or [],
        num_blocks=10,
        block_size=4,
        vocab_size=50,
        device=torch.device("cpu"),
    )


def test_packs_what_each_entry_computes():
    a = request(0, [10, 11, 12, 13, 14, 15], [3, 7, 9])
    b = request(1, [20, 21, 22], [5])
    c = request(2, [30], [2])
    batch = build(StepEntry(a, 3, 3), StepEntry(b, 0, 0), StepEntry(b, 0, 2), StepEntry(c, 0, 1), wanted=[3, 0])
    assert batch is not None
    assert batch.input_ids.tolist() == [13, 14, 15, 20, 21, 30]
    assert batch.positions.tolist() == [3, 4, 5, 0, 1, 0]
    assert batch.slot_mapping.tolist() == [15, 28, 29, 20, 21, 8]
    assert batch.cu_seqlens_q.tolist() == [0, 3, 5, 6]
    assert batch.seq_lens.tolist() == [6, 2, 1]
    assert batch.block_tables.tolist() == [[3, 7], [5, 0], [2, 0]]  # only the blocks in use, padded with block 0
    assert batch.logits_rows.tolist() == [5, 2]
    assert (batch.num_rows, batch.num_tokens) == (3, 6)


def test_packs_drafts_and_tokens_that_are_still_unknown():
    a = request(0, [10, 11, 12], [3, 7])
    b = request(1, [20, 21, 22, 23, PLACEHOLDER], [5, 8])
    drawn = Drawn(torch.tensor([30, -1]), {1: 1})
    host = pack_step(
        Step(0, [StepEntry(a, 2, 3, draft=[13, 14]), StepEntry(b, 4, 1)]),
        [1, 0],
        num_blocks=10,
        block_size=4,
        vocab_size=50,
        drawn=drawn,
    )
    assert host is not None
    assert host.input_ids.tolist() == [12, 13, 14, 0]
    assert (host.placeholder_positions.tolist(), host.drawn_rows.tolist()) == ([3], [1])
    assert host.slot_mapping.tolist() == [14, 15, 28, 32]
    assert host.logits_rows.tolist() == [3, 0, 1, 2]  # of a draft, the token before it and all of its own
    ids = host.upload(torch.device("cpu"), drawn).input_ids
    assert ids.tolist() == [12, 13, 14, 0]  # nothing could be drawn: a token of the vocabulary, until the request ends
    with pytest.raises(ValueError, match=r"no token for requests \[1\]"):
        pack_step(Step(0, [StepEntry(b, 4, 1)]), [], num_blocks=10, block_size=4, vocab_size=50)


def test_many_blocks_are_checked_as_few_are():
    blocks = list(range(1, 301))
    entry = StepEntry(request(0, [1] * 1200, blocks), 1199, 1)
    settings = {"block_size": 4, "vocab_size": 50}
    assert pack_step(Step(0, [entry]), [0], num_blocks=301, **settings) is not None
    with pytest.raises(ValueError, match="outside 1 to 299"):
        pack_step(Step(0, [entry]), [0], num_blocks=300, **settings)


def test_no_tokens_no_batch():
    assert build() is None
    assert build(StepEntry(request(0, [1], [1]), 1, 0)) is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([StepEntry(request(0, [1, 2], [1]), 1, 2)], "it has 2"),
        ([StepEntry(request(0, [1, 2], [1]), -1, 2)], "tokens -1 to 1"),
        ([StepEntry(request(0, [1] * 9, [1, 2]), 0, 9)], "9 tokens do not fit its 2 blocks"),
        ([StepEntry(request(0, [1], [0]), 0, 1)], "outside 1 to 9"),
        ([StepEntry(request(0, [1], [10]), 0, 1)], "outside 1 to 9"),
        ([StepEntry(request(0, [50], [1]), 0, 1)], "vocabulary of 50"),
        ([StepEntry(request(i, [1], [4]), 0, 1) for i in range(2)], "two tokens"),
    ],
)
def test_steps_that_do_not_fit_together(entries: list[StepEntry], message: str):
    with pytest.raises(ValueError, match=message):
        build(*entries)
