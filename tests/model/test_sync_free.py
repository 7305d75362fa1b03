"""Sampling as on a GPU: no operation makes the host wait for the device, and the tokens are the same."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.core.step import Step, StepEntry
from roseplay.model import runner as runner_module
from roseplay.model import step_sampler
from roseplay.model.attention.interface import Paged
from roseplay.model.batch import Drawn
from roseplay.model.forward import PackedForward
from roseplay.model.layout import RecordingBackend
from roseplay.model.loader import load_model
from roseplay.model.padding import dummy_batch
from roseplay.model.sampler import draw
from roseplay.model.stateful import use_static_slots
from roseplay.model.states import StatePool
from roseplay.model.top_k_top_p import _search, cut_threshold
from tests.kernels.emulation import emulate_gpu
from tests.model.families import FAMILIES, STATEFUL, tiny_model
from tests.model.harness import Operations, make_runner
from tests.model.test_sampler import MIXED, random_logits, request, sample

# On a GPU, each of these reads a number, or the size of its result, from the device.
WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique_dim", "_unique2", "equal", "is_nonzero",
}  # fmt: skip


class Waits(TorchDispatchMode):
    """Raises if an operation would wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)] if "index" in name and (
            len(args) > 1 and isinstance(args[1], list | tuple)
        ) else []  # fmt: skip
        assert name not in WAITING, f"{name} waits for the device"
        assert not masks, f"{name} with a mask waits for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_waits() -> Iterator[None]:
    def refuse(tensor: torch.Tensor, *args: Any) -> Any:
        raise AssertionError("reading a tensor waits for the device")

    with pytest.MonkeyPatch.context() as patch, Waits():
        for name in ("tolist", "cpu"):  # these bypass the dispatcher
            patch.setattr(torch.Tensor, name, refuse)
        yield


def requests_of_all_kinds() -> list[Request]:
    return [request(answer=(4, 4, 9), **params) for params in MIXED]


def test_what_waits_is_found():
    for wait in (lambda x: x.max().item(), lambda x: x[x > 0], torch.nonzero, lambda x: x.tolist()):
        with pytest.raises(AssertionError, match="waits for the device"), nothing_waits():
            wait(torch.ones(3))
    logits, asked = random_logits(3), [request(temperature=1.0, seed=1, top_p=0.5)] * 3
    with pytest.raises(AssertionError, match="waits for the device"), nothing_waits():
        draw(logits, asked, wait=True)


@pytest.mark.parametrize("params", [*MIXED, None])
def test_nothing_waits(params: dict[str, Any] | None):
    asked = requests_of_all_kinds() if params is None else [request(answer=(4, 4, 9), **params)] * 2
    logits = random_logits(len(asked))
    for r in asked:
        r.token_ids.append(PLACEHOLDER)
    drawn = Drawn(torch.tensor([7]), {0: 0})
    with nothing_waits():
        tokens = draw(logits, asked, drawn, wait=False)
    for r in asked:
        r.token_ids[-1] = 7
    assert tokens.tolist() == sample(logits, asked)


@pytest.mark.parametrize("levels", [0, 3, 40, 10**6])
def test_vocabularies_are_not_sorted_if_all_rows_have_top_k(levels: int):
    """``levels``: of how many different logits there are, so that many are equal at the cut."""
    shares = (0.05, 0.3, 0.5, 0.9, 0.999, 1.0)
    params = [SamplingParams(top_k=k, top_p=p, min_p=k % 2 / 50) for k in (1, 2, 20, 77, 125) for p in shares]
    min_p_only = [SamplingParams(min_p=p.min_p) for p in params]
    logits = (random_logits(len(params), seed=6) * levels / 9).round() * 9 / max(levels, 1)
    with Operations() as seen:
        threshold = cut_threshold(logits, params, sort=True)
    assert "sort" not in seen.largest
    by_bucket = _search(logits, [p.top_k or 0 for p in params], [p.top_p for p in params])
    assert torch.equal(threshold, torch.maximum(by_bucket, cut_threshold(logits, min_p_only)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_the_tokens_of_their_float32_copies(dtype: torch.dtype):
    asked = requests_of_all_kinds()
    logits = random_logits(len(asked)).to(dtype)
    assert draw(logits, asked, wait=False).tolist() == sample(logits.float(), asked)


class Silent(RecordingBackend):
    """Computes no attention, and accepts being called again."""

    def append(self, *args: Any) -> None:
        pass


@pytest.mark.parametrize("family", FAMILIES)
def test_no_model_waits(family: str):
    """A family that waited would run without graphs."""
    loaded = load_model(tiny_model(FAMILIES[family]()), EngineConfig(pack_weights=False))
    batch = dummy_batch(4, row_tokens=4, block_size=4).upload(loaded.device)
    with torch.inference_mode(), nothing_waits():
        logits = PackedForward(loaded.model)(Paged(Silent(), batch))
    assert logits.shape == (1, loaded.vocab_size)


class OnMeta(TorchDispatchMode):
    """Raises if an operation reads or creates a tensor on any device other than "meta"."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        elsewhere = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor) and not x.is_meta]
        assert not elsewhere, f"{func} receives or returns a tensor on the host"
        return out


@pytest.mark.parametrize(
    "family",
    [
        name if name in ("qwen3_5_text", "lfm2", "bamba") else pytest.param(name, marks=pytest.mark.slow)
        for name in STATEFUL
    ],
)
def test_no_decode_of_a_model_with_recurrent_layers_leaves_the_device(family: str):
    """A family that did would run without graphs. "meta" has no values to wait for or to copy to the host."""
    device = torch.device("meta")
    loaded = load_model(tiny_model(STATEFUL[family]()), EngineConfig(pack_weights=False, fuse_ops=False))
    model = loaded.model.to(device, torch.bfloat16)  # a dtype that products of experts support there
    batch = dummy_batch(3, row_tokens=1, block_size=4, num_logits=3, start=1).upload(device)
    use_static_slots(batch, torch.zeros(3, dtype=torch.int64, device=device))
    with torch.inference_mode(), OnMeta():
        logits = PackedForward(model)(Paged(Silent(), batch, StatePool(loaded.state_shapes, 4, device)))
    assert logits.shape == (3, loaded.vocab_size)


@pytest.mark.parametrize("graphs", [True, False])
def test_no_step_waits_before_its_result_is_asked_for(graphs: bool, monkeypatch: pytest.MonkeyPatch):
    """Copies, prompts, saved logits, repeats, tokens that only the device knows, and every kind of sampling."""
    monkeypatch.setattr(runner_module, "make_backend", lambda name, cache: Silent())
    # As on a GPU: by default, a sampler may wait for a CPU.
    monkeypatch.setattr(step_sampler, "draw", functools.partial(draw, wait=False))
    with emulate_gpu((16,), (32, 64)):
        runner = make_runner(tiny_model(FAMILIES["llama"]()))
    asked = [request(answer=(4, 4, 9), logprobs=2, **params) for params in MIXED]
    for i, r in enumerate(asked):
        r.request_id, r.block_table = i, [1 + 4 * i + j for j in range(4)]
    first = [
        StepEntry(r, 0, r.num_tokens, samples=True, logits_entry=i, save_logits_key=i) for i, r in enumerate(asked)
    ]
    second = [StepEntry(r, r.num_tokens, 1, samples=True, logits_entry=i) for i, r in enumerate(asked[:-1])]
    second.append(StepEntry(asked[-1], asked[-1].num_tokens, 0, samples=True, logits_key=3))
    with nothing_waits():
        before = runner.launch(Step(0, first, cuda_graphs=graphs))
        for r in asked:
            r.token_ids.append(PLACEHOLDER)
        after = runner.launch(Step(1, second, copies=[(1, 120)], dropped_logits=[5], cuda_graphs=graphs))
    for launched in (before, after):
        result = launched.result()
        assert result.replayed is graphs
        assert all(token is not None for token in result.token_ids)
        assert all(logprobs is not None for logprobs in result.logprobs)
