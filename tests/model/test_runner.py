"""Executing steps: where logits come from, what is written where, and inconsistent steps."""

from __future__ import annotations

import pytest
import torch

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model.attention.interface import make_backend
from roseplay.model.loader import load_model
from roseplay.model.runner import ModelRunner
from tests.model.families import FAMILIES, VOCABULARY, tiny_model
from tests.model.harness import BLOCK_SIZE, eager_logits, make_runner, random_tokens, step_of


@pytest.fixture(scope="module")
def model():
    return tiny_model(FAMILIES["llama"]())


@pytest.fixture
def runner(model) -> ModelRunner:
    return make_runner(model, num_blocks=32)


def request(tokens: list[int], blocks: list[int], request_id: int = 0, **params) -> Request:
    made = Request(request_id, tokens, SamplingParams(**params))
    made.block_table = blocks
    return made


def drawing(r: Request, start: int, count: int, row: int, **about: int) -> StepEntry:
    """Draws from the logits of the entry with index ``row``."""
    return StepEntry(r, start, count, samples=True, logits_entry=row, **about)


def greedy(model, tokens: list[int]) -> int:
    return int(eager_logits(model, tokens)[-1].argmax())


def test_followers_share_the_leaders_blocks_and_logits_in_the_same_step(model, runner):
    prompt = random_tokens(10, 97, 2)
    leader = request(prompt, [5, 6, 7])
    follower = request(list(prompt), [5, 6, 7], 1, temperature=1.0, seed=5)
    longer = request(prompt[:8] + random_tokens(3, 97, 3), [5, 6, 9], 2)
    result = step_of(
        runner,
        drawing(longer, 8, 3, row=0),  # before its leader, since appends come first
        drawing(leader, 0, 10, row=1),
        drawing(follower, 10, 0, row=1),
    )
    assert result.token_ids[:2] == [greedy(model, longer.token_ids), greedy(model, prompt)]
    alone = make_runner(model)
    assert result.token_ids[2] == step_of(alone, drawing(follower, 0, 10, row=0)).token_ids[0]


def test_each_entry_draws_from_the_row_it_names(model, runner):
    """There are as many draws as rows, but all are from the same row."""
    one, two = random_tokens(5, 97, 8), random_tokens(7, 97, 9)
    assert greedy(model, one) != greedy(model, two)
    result = step_of(
        runner,
        StepEntry(request(one, [1, 2]), 0, 5, save_logits_key=1),
        drawing(request(two, [3, 4], 1), 0, 7, row=1),
        drawing(request(list(two), [3, 4], 2), 7, 0, row=1),
    )
    assert result.token_ids == [None, greedy(model, two), greedy(model, two)]


def test_saved_logits_serve_a_step_without_rows(model, runner):
    prompt = random_tokens(6, 97, 4)
    first = request(prompt, [1, 2])
    step_of(runner, StepEntry(first, 0, 6, save_logits_key=77))
    repeat = request(list(prompt), [1, 2], 1, logprobs=2)
    result = step_of(runner, StepEntry(repeat, 6, 0, samples=True, logits_key=77))
    assert result.token_ids == [greedy(model, prompt)]
    assert result.logprobs[0] is not None
    assert result.logprobs[0].top[0][0] == result.token_ids[0]
    mixed = step_of(  # saved, computed, and saved again
        runner,
        StepEntry(repeat, 6, 0, samples=True, logits_key=77),
        drawing(request(random_tokens(3, 97, 5), [4], 2), 0, 3, row=1),
        StepEntry(request(list(prompt), [1, 2], 3), 6, 0, samples=True, logits_key=77),
    )
    assert mixed.token_ids == [result.token_ids[0], greedy(model, random_tokens(3, 97, 5)), result.token_ids[0]]


def test_saved_logits_are_raw_and_their_own(model, runner):
    """Taken before penalties, and not a view of memory that a later step overwrites."""
    prompt = random_tokens(6, 97, 6)
    penalised = request(prompt, [1, 2], repetition_penalty=50.0, temperature=3.0)
    other = request(random_tokens(3, 97, 7), [3], 1)
    step_of(runner, drawing(other, 0, 3, row=0), drawing(penalised, 0, 6, row=1, save_logits_key=1))
    saved = runner._sampler.saved_logits[1]
    assert saved.dtype == torch.float32
    assert (saved - eager_logits(model, prompt)[-1]).abs().max() < 1e-4
    assert saved.untyped_storage().nbytes() == runner.logits_bytes == 4 * VOCABULARY


def test_dropped_logits_are_forgotten_before_new_ones_are_saved(runner):
    r = request(random_tokens(3, 97, 0), [1])
    step_of(runner, StepEntry(r, 0, 3, save_logits_key=5))
    step_of(runner, StepEntry(r, 2, 1, save_logits_key=5), dropped_logits=[5, 1234])
    assert set(runner._sampler.saved_logits) == {5}
    step_of(runner, dropped_logits=[5])
    with pytest.raises(ValueError, match="saved logits 5, which are not there"):
        step_of(runner, StepEntry(r, 3, 0, samples=True, logits_key=5))
    step_of(runner, StepEntry(r, 0, 3, save_logits_key=6))
    runner.clear()
    assert not runner._sampler.saved_logits


def test_copies_come_before_appends(model, runner):
    """Two requests diverge inside a block: one gets a copy, and both continue from the common tokens."""
    common = random_tokens(6, 97, 7)
    a = request([*common, 11], [1, 2])
    b = request([*common, 13], [1, 3], 1)
    step_of(runner, StepEntry(a, 0, 6))
    result = step_of(runner, drawing(a, 6, 1, row=0), drawing(b, 6, 1, row=1), copies=[(2, 3)])
    assert result.token_ids == [greedy(model, a.token_ids), greedy(model, b.token_ids)]


def test_only_the_steps_own_slots_are_written(runner):
    for tensors in (runner.cache.keys, runner.cache.values):
        for tensor in tensors.values():
            tensor.copy_(torch.randn(tensor.shape))
    before = {layer: tensor.clone() for layer, tensor in runner.cache.keys.items()}
    r = request(random_tokens(7, 97, 0), [9, 20])
    step_of(runner, StepEntry(r, 0, 7))
    for layer, tensor in runner.cache.keys.items():
        changed = (tensor != before[layer]).any(-1).any(1)  # [block, offset]
        slots = {(9, o) for o in range(4)} | {(20, o) for o in range(3)}
        assert {tuple(x) for x in changed.nonzero().tolist()} == slots


@pytest.mark.parametrize("attention", ["cpu", "gather", "reference"])
def test_what_lies_in_other_slots_does_not_matter(model, attention: str):
    """Stale columns of a block table, block 0, and the rest of a last block may contain anything."""
    runner = make_runner(model, attention=attention, num_blocks=32)
    for tensors in (runner.cache.keys, runner.cache.values):
        for tensor in tensors.values():
            tensor.fill_(1e4)
    a = request(random_tokens(6, 97, 1), [3, 4, 30, 31])  # two blocks more than its tokens need
    b = request(random_tokens(17, 97, 2), [5, 6, 7, 8, 9], 1)
    step_of(runner, StepEntry(a, 0, 5), StepEntry(b, 0, 16))
    result = step_of(runner, drawing(a, 5, 1, row=0), drawing(b, 16, 1, row=1))
    assert result.token_ids == [greedy(model, a.token_ids), greedy(model, b.token_ids)]


@pytest.mark.parametrize("attention", ["cpu", "gather", "reference"])
def test_a_request_that_overflows_spoils_nobody_else(attention: str):
    """Neither its neighbours nor requests that get its blocks afterwards."""
    model = tiny_model(FAMILIES["llama"]())
    with torch.no_grad():
        model.model.embed_tokens.weight[90] = float("nan")
    runner = make_runner(model, attention=attention, num_blocks=32)
    ill = request([5, 90, 6, 7, 90, 8, 9, 10], [1, 2])  # of its last token, only what it attends to is NaN
    well = request([3, 4, 5, 6, 7], [3, 4], 1)
    result = step_of(runner, drawing(ill, 0, 8, row=0), drawing(well, 0, 5, row=1))
    assert result.token_ids == [None, greedy(model, well.token_ids)] and "NaN logits" in result.errors[0]
    after = request([11, 12], [2], 2)
    longer = request([13, 14, 15, 16, 17, 18], [5, 1], 3)
    step_of(runner, StepEntry(after, 0, 1), StepEntry(longer, 0, 5))
    result = step_of(runner, drawing(after, 1, 1, row=0), drawing(longer, 5, 1, row=1))
    assert result.token_ids == [greedy(model, after.token_ids), greedy(model, longer.token_ids)]


def test_warm_up_writes_into_block_0_only(model):
    runner = make_runner(model)
    for tensors in (runner.cache.keys, runner.cache.values):
        assert all(not tensor[1:].any() for tensor in tensors.values())
    assert runner.cache.keys[0][0].any()


def test_steps_without_rows(runner):
    result = step_of(runner)
    assert (result.token_ids, result.logprobs) == ([], [])
    result = step_of(runner, StepEntry(request([3, 4], [1]), 2, 0))
    assert (result.token_ids, result.logprobs) == ([None], [None])
    copied = request([3, 4, 5, 6], [1])
    step_of(runner, StepEntry(copied, 0, 4))
    step_of(runner, copies=[(1, 2)])
    assert torch.equal(runner.cache.keys[0][1], runner.cache.keys[0][2])


def test_a_step_that_samples_nothing(runner):
    result = step_of(runner, StepEntry(request(random_tokens(9, 97, 0), [1, 2, 3]), 0, 8))
    assert result.token_ids == [None]
    assert result.prepare_ns > 0
    assert result.forward_ns > 0
    assert result.device_ns == result.forward_ns


def test_steps_that_make_no_sense_change_nothing(runner):
    r = request(random_tokens(3, 97, 0), [1])
    before = [tensor.clone() for tensor in runner.cache.keys.values()]
    bad = [
        StepEntry(r, 0, 3, samples=True),
        StepEntry(r, 0, 3, samples=True, logits_entry=0, logits_key=1),
        drawing(r, 0, 3, row=1),
        drawing(r, 0, 3, row=-1),
        StepEntry(r, 0, 3, samples=True, logits_key=404),
        drawing(r, 3, 0, row=0),
        StepEntry(r, 3, 0, save_logits_key=3),
        StepEntry(r, 1, 3),
    ]
    for entry in bad:
        with pytest.raises(ValueError, match=r"\w+"):
            runner.execute(Step(0, [entry], copies=[(1, 2)]))
    with pytest.raises(ValueError, match="two copies"):
        step_of(runner, StepEntry(r, 0, 3), copies=[(3, 2), (4, 2)])
    assert all(torch.equal(a, b) for a, b in zip(before, runner.cache.keys.values(), strict=True))
    assert not runner._sampler.saved_logits
    assert step_of(runner, drawing(r, 0, 3, row=0)).token_ids != [None]


def test_logits_past_the_tokenizers_vocabulary_stay_possible(model):
    biased = tiny_model(FAMILIES["phi"]())  # its output layer has a bias
    with torch.no_grad():
        biased.lm_head.bias[96] = 1e3
    r = request([3], [1])
    assert step_of(make_runner(biased), drawing(r, 0, 1, row=0)).token_ids == [96]


def test_info(model):
    config = EngineConfig(num_blocks=16, block_size=BLOCK_SIZE, threads=1)
    info = ModelRunner(load_model(model, config), config).info()
    assert (info.architecture, info.device, info.dtype, info.attention) == ("LlamaForCausalLM", "cpu", "float32", "cpu")
    assert (info.vocab_size, info.block_size, info.num_blocks, info.max_model_len) == (97, 4, 16, 64)
    assert info.kv_bytes_per_token == 3 * 2 * 2 * 8 * 4
    assert info.threads == 1
    assert info.num_parameters == sum(p.numel() for p in model.parameters())


def test_unknown_backend(model):
    cache = make_runner(model).cache
    with pytest.raises(ValueError, match="no attention backend 'flash'.* cpu, gather, reference"):
        make_backend("flash", cache)
    with pytest.raises(ValueError, match="attention is 'flash'"):
        EngineConfig(attention="flash")


def test_several_runners_share_a_model(model):
    loaded = load_model(model, EngineConfig(num_blocks=8, block_size=BLOCK_SIZE))
    config = EngineConfig(num_blocks=8, block_size=BLOCK_SIZE)
    first, second = ModelRunner(loaded, config), ModelRunner(loaded, config)
    r = request(random_tokens(3, 97, 0), [1])
    step_of(first, StepEntry(r, 0, 3))
    assert not second.cache.keys[0][1].any()
