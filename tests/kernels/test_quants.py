"""Weights in ggml's quantized blocks: exact weights, products in integers and in floats, and what reads the blocks."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("gguf", reason="dequantizes the blocks: pip install 'roseplay[gguf]'")
pytest.importorskip("numba", reason="Numba is not installed")
import gguf

from roseplay import Engine, EngineConfig, SamplingParams
from roseplay.kernels.cpu.pack import pack_linears
from roseplay.kernels.cpu.products import Products
from roseplay.kernels.cpu.quants import tiles
from roseplay.kernels.cpu.quants.linear import BlockEmbedding, BlockLinear
from roseplay.kernels.cpu.quants.strips import Strips, number_bytes
from roseplay.kernels.cpu.quants.strips import rounded as rounded_to_blocks
from roseplay.kernels.cpu.tiles import most_rows
from roseplay.kernels.merge import MergedLinear, joined
from roseplay.model.block_tensor import BlockTensor, shapes_only
from roseplay.model.ggml_blocks import FORMATS
from roseplay.model.loader import load_model
from roseplay.model.source import embedded_model
from tests.gguf_files import random_blocks
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import products_of, refusal, torch_threads

INTEGERS, EXPANDED = Products(True, blocks=True), Products(True, 1, blocks=True)
SUPER_BLOCKS = ("Q4_K", "Q5_K", "Q6_K")  # their scales are products that float16 rounds


def stored(kind: str, rows: int, inner: int, *, order: Any = None) -> BlockTensor:
    """A weight of random blocks."""
    return BlockTensor(random_blocks(kind, rows, inner), kind, order, torch.float32)


@pytest.fixture(params=["integers", "floats"])
def products(request: pytest.FixtureRequest) -> Products:
    if not (tiles.most_rows() if request.param == "integers" else most_rows(torch.float32)):
        pytest.skip("this CPU has no such instructions")
    return INTEGERS if request.param == "integers" else EXPANDED


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x, with each block of 32 rounded to 255 values."""
    blocks = functional.pad(x.float(), (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    return ((blocks * (127 / largest)).round() * (largest / 127)).nan_to_num().flatten(-2)[..., : x.shape[-1]]


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_are_those_that_gguf_dequantizes(kind: str) -> None:
    order = np.random.default_rng(1).permutation(70)
    weight = stored(kind, 70, 512, order=order)
    expected = weight.dequantized()
    plain = gguf.dequantize(weight.stored, gguf.GGMLQuantizationType[kind])[order]
    assert torch.equal(expected, torch.from_numpy(plain))
    found = BlockEmbedding(Strips(weight, kind), 1.0)(torch.arange(70)[None])[0]
    if kind in SUPER_BLOCKS:
        torch.testing.assert_close(found, expected, rtol=0, atol=2**-10 * float(expected.abs().max()))
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, torch.float32) for kind in FORMATS), *((kind, torch.bfloat16) for kind in ("Q4_1", "Q6_K", "Q8_0"))],
    ids=str,
)
def test_a_product_is_that_of_the_rounded_numbers(products: Products, kind: str, dtype: torch.dtype) -> None:
    if products is EXPANDED and not most_rows(dtype):
        pytest.skip("this CPU has no such instructions")
    torch.manual_seed(0)
    for rows, inner, outer in ((1, 256, 32), (3, 512, 50), (8, 256, 96), (33, 2048, 70)):
        check_product(products, kind, dtype, rows, inner, outer)


def check_product(products: Products, kind: str, dtype: torch.dtype, rows: int, inner: int, outer: int) -> None:
    weight, bias, x = stored(kind, outer, inner), torch.randn(outer), torch.randn(2, rows, inner, dtype=dtype)
    x[0, 0] = 0
    layer = BlockLinear(Strips(weight, kind), bias, products)
    with torch.inference_mode():
        found = layer(x)
    kept = x.float() if products is EXPANDED else rounded(x)
    expected = functional.linear(kept, weight.dequantized(), bias)
    assert (found.shape, found.dtype) == ((2, rows, outer), dtype)
    error = (found.float() - expected).norm() / expected.norm()
    assert error < (5e-3 if dtype == torch.bfloat16 else 5e-4)


@pytest.mark.parametrize("number", [0, 255])
@pytest.mark.parametrize("kind", FORMATS)
def test_no_sum_overflows(products: Products, kind: str, number: int) -> None:
    """Of the largest numbers of x and of the weight."""
    strips, x = Strips(stored(kind, 32, 256), kind), torch.ones(4, 256)
    bits = 8 if strips.form.bits == 4 else strips.form.bits
    strips.packed[..., : number_bytes(strips.form)] = number & (2**bits - 1)
    x[1::2] = -1
    expected = x @ BlockEmbedding(strips, 1.0)(torch.arange(32)).T
    torch.testing.assert_close(BlockLinear(strips, None, products)(x), expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_a_row_s_numbers_do_not_depend_on_the_other_rows(products: Products, kind: str) -> None:
    """Nor on the number of threads."""
    layer, x = BlockLinear(Strips(stored(kind, 70, 256), kind), None, products), torch.randn(513, 256)
    with torch.inference_mode():
        together = layer(x)
        assert all(torch.equal(layer(x[row : row + 1])[0], together[row]) for row in (0, 17, 512))
        for threads, rows in ((1, 7), (2, 8), (3, 9), (2, 33), (3, 513)):
            with torch_threads(threads):
                assert torch.equal(layer(x[:rows]), together[:rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_what_is_not_finite_stays_so(products: Products, kind: str, dtype: torch.dtype) -> None:
    """So that an engine ends the request, as with plain weights; and only in its own row."""
    if products is EXPANDED and not most_rows(dtype):
        pytest.skip("this CPU has no such instructions")
    layer = BlockLinear(Strips(stored(kind, 40, 256), kind), None, products)
    for number in (torch.nan, torch.inf, -torch.inf):
        x = torch.randn(4, 256, dtype=dtype)
        x[1, 0] = x[2, 95] = number
        with torch.inference_mode():
            found = layer(x)
        assert found[[0, 3]].isfinite().all() and not found[1:3].isfinite().any()


def test_sizes_of_x_at_the_ends_of_its_range(products: Products) -> None:
    """Up to where the sum of a block of 32 is finite."""
    weight = stored("Q8_0", 40, 64)
    for largest in (1e-44, 1e-37, 1e30, 1e37):
        x = torch.randn(3, 64).clamp(-1, 1)
        x[1] *= largest
        with torch.inference_mode():
            found = BlockLinear(Strips(weight, "Q8_0"), None, products)(x)
        expected = functional.linear(x, weight.dequantized())
        scales = expected.abs().amax(-1, keepdim=True)
        assert float(((found - expected) / scales.clamp(1e-20)).abs().max()) < 0.02


@pytest.mark.parametrize("kind", FORMATS)
def test_a_scale_that_is_not_a_number_spoils_its_own_output(products: Products, kind: str) -> None:
    weight, size = stored(kind, 40, 256), gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    weight.stored.reshape(40, -1, size)[3, 0, 208 if kind == "Q6_K" else 0 :][:2] = (0, 0x7E)
    with torch.inference_mode():
        found = BlockLinear(Strips(weight, kind), None, products)(torch.randn(2, 256))
    assert (~found.isfinite()).all(0).nonzero().tolist() == [[3]] and found.isfinite().sum() == 2 * 39


@pytest.mark.parametrize("floats_from", [1, 8, None])
def test_steps_are_replayed_with_any_products(floats_from: int | None) -> None:
    params, answers = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True), []
    for recorded in (False, True):
        settings: dict[str, Any] = {"quantization": "q8", "record_steps": recorded, "num_blocks": 32, "threads": 2}
        chosen = products_of(Products(True, floats_from, blocks=True))
        with chosen, Engine(tiny_model(FAMILIES["llama"]()), **settings) as engine:
            steps = next(choice.chosen for choice in engine.info.choices if choice.part == "steps")
            assert steps == ("recorded and replayed" if recorded else "the model's code")
            answers.append([engine.submit(list(range(3, 3 + n)), params).result().token_ids for n in (1, 9, 30)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_plain_weights_are_rounded_to_blocks(products: Products, kind: str) -> None:
    """Also those whose inputs are not a multiple of 32."""
    weight, x = torch.randn(50, 200), torch.randn(5, 200)
    layer = BlockLinear(Strips(weight, kind), None, products)
    by_gguf = gguf.quantize(functional.pad(weight, (0, 24)).numpy(), gguf.GGMLQuantizationType[kind])
    expected = torch.from_numpy(gguf.dequantize(by_gguf, gguf.GGMLQuantizationType[kind]))[:, :200]
    mine = BlockEmbedding(layer.strips, 1.0)(torch.arange(50))
    assert float((mine - weight).norm()) <= 1.01 * float((expected - weight).norm())
    found, exact = layer(x), functional.linear(x, mine)
    assert float((found - exact).norm() / exact.norm()) < 0.01
    for dtype in (torch.float32, torch.bfloat16):
        strips = Strips(weight.to(dtype), kind)
        assert strips.saved_bytes == 50 * 200 * dtype.itemsize - layer.strips.packed.numel()


@given(
    seed=st.integers(0, 2**32), kind=st.sampled_from(["Q4_1", "Q8_0"]), exponents=st.tuples(*[st.integers(-8, 8)] * 3)
)
def test_numbers_of_any_size_are_rounded_to_the_nearest(seed: int, kind: str, exponents: tuple[int, int, int]) -> None:
    """In Q8_0 within half a scale; in Q4_1 to the nearest of the block's values, with no more error than between extremes."""
    chance = np.random.default_rng(seed)
    least, most, middle = (10.0**exponent for exponent in exponents)
    weight = chance.uniform(-1, 1, (4, 64)) * chance.choice([least, most], (4, 1)) + chance.choice([0, middle], (4, 1))
    weight = weight.astype(np.float32)
    weight[0, :32] = 0
    blocks = weight.reshape(4, 2, 32)
    extremes = blocks.max(-1), blocks.min(-1)
    largest = np.maximum(*map(abs, extremes)) / 127 if kind == "Q8_0" else (extremes[0] - extremes[1]) / 15
    lowest = np.zeros_like(largest) if kind == "Q8_0" else abs(extremes[1])
    fits = max(largest.max(), lowest.max()) < 65000
    try:
        with np.errstate(divide="raise", invalid="raise"):
            found = rounded_to_blocks(weight, kind)
    except OverflowError:
        assert not fits
        return
    scales = found.scales.astype(np.float64)
    assert (scales >= 0).all() and np.isfinite(scales).all()
    if kind == "Q8_0":
        numbers = found.numbers.astype(np.float64) - 128
        assert not fits or (scales[..., 0] <= 1.002 * largest + 2**-9 * lowest + 1.07 * 2**-24).all()
        assert abs(numbers).max() <= 127 and (numbers * np.sign(blocks) >= 0).all()
        assert (abs(numbers * scales - blocks) <= 0.5001 * scales + 1e-7 * abs(blocks)).all()
        return
    numbers = np.concatenate([found.numbers & 15, found.numbers >> 4], -1)
    errors = numbers * scales + found.minima.astype(np.float64) - blocks
    between = 0.5002 * largest + 2**-10 * (largest + lowest) + 2**-23  # half a scale, which float16 has rounded
    assert not fits or (np.square(errors).mean(-1) <= np.square(between)).all()
    inside = (numbers > 0) & (numbers < 15)
    assert (abs(errors) <= 0.5001 * scales + 1e-7 * abs(blocks))[inside].all()


def test_four_bits_have_less_error_than_between_extremes() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    extremes = np.square(gguf.dequantize(gguf.quantize(weight, kind), kind) - weight).mean()
    found = Strips(torch.from_numpy(weight), "Q4_1")
    mine = BlockEmbedding(found, 1.0)(torch.arange(64)).numpy()
    assert np.square(mine - weight).mean() < 0.9 * extremes


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("number", [-9e6, torch.nan, torch.inf])
def test_numbers_without_a_finite_scale_are_refused(kind: str, number: float) -> None:
    weight = torch.randn(8, 64)
    weight[5, 40] = number
    with pytest.raises(OverflowError, match="too large for float16 scales, or not finite"):
        Strips(weight, kind)


@pytest.mark.parametrize(
    ("family", "layer"), [("gpt2", "transformer.h.1.mlp.c_fc"), ("llama", "model.layers.1.self_attn.v_proj")]
)
def test_a_weight_that_cannot_be_rounded_is_named(family: str, layer: str) -> None:
    """Also one of several that are multiplied as one."""
    model = tiny_model(FAMILIES[family]())
    weight = model.get_submodule(layer).weight
    for number, is_refused in ((9e4, False), (9e6, True), (torch.nan, True)):
        with torch.no_grad():
            weight.view(-1)[40] = number
        if not is_refused:
            load_model(model, EngineConfig(quantization="q8"))
            continue
        message = refusal(model, quantization="q8")
        assert f"{layer}.weight has numbers that are too large" in message and "set quantization to none" in message


@pytest.mark.parametrize("quantization", ["q8", "q4"])
def test_small_weights_are_not_worse(quantization: str) -> None:
    """The same function with values divided by a number, and their results multiplied by it."""
    model, params = tiny_model(FAMILIES["llama"]()), SamplingParams(max_new_tokens=1, temperature=0.0, logprobs=1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight /= 2**14
            layer.self_attn.o_proj.weight *= 2**14
    logprobs = []
    for settings in ({}, {"quantization": quantization}):
        with Engine(model, num_blocks=32, threads=1, **settings) as engine:
            logprobs.append(engine.submit([5, 6, 7, 8, 9], params).result().logprobs[0].logprob)
    assert logprobs[0] == pytest.approx(logprobs[1], abs={"q8": 0.1, "q4": 0.3}[quantization])


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_weights_of_one_size_are_rounded_too(kind: str) -> None:
    """Whose minimum float16 rounds, and whose differences it may round to 0."""
    for weight in (1000.4 + 0.2 * torch.rand(8, 64), torch.full((8, 64), -0.3), torch.zeros(8, 64)):
        mine = BlockEmbedding(Strips(weight, kind), 1.0)(torch.arange(8))
        errors = mine - weight
        if kind == "Q8_0":
            assert float(errors.abs().max()) <= float(weight.abs().max()) * 2**-7 + 2**-11
        else:  # as numbers have that are rounded to fifteenths of 0.6, from the minimum 1000 on
            assert (
                float(errors.square().mean().sqrt()) <= float(weight.abs().max()) * 0.6 / 15 / 12**0.5 / 1000 + 2**-11
            )


def test_x_that_does_not_fit_the_weight_is_refused(products: Products) -> None:
    with pytest.raises(RuntimeError, match=r"\[8, 64\]"):
        BlockLinear(Strips(torch.randn(8, 64), "Q8_0"), None, products)(torch.randn(2, 32))
    with pytest.raises(RuntimeError, match="float64"):
        BlockLinear(Strips(torch.randn(8, 64), "Q8_0"), None, products)(torch.randn(2, 64, dtype=torch.float64))
    assert BlockLinear(Strips(torch.randn(8, 64), "Q8_0"), None, products)(torch.randn(0, 64)).shape == (0, 8)


class Scaled(nn.Embedding):
    """As Gemma's."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 3


class Shifted(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) + 1


@pytest.mark.parametrize(
    ("make", "expected"), [(nn.Embedding, lambda rows: rows), (Scaled, lambda rows: rows * 3), (Shifted, None)]
)
def test_an_embedding_is_replaced_if_it_does_no_more_than_scale(
    make: type[nn.Embedding], expected: Callable[[torch.Tensor], torch.Tensor] | None
) -> None:
    weight = stored("Q4_0", 40, 64)
    plain = make(40, 64, _weight=weight)
    plain.weight.requires_grad_(False)
    new = BlockEmbedding.of(plain, None)
    assert (new is None) == (expected is None)
    if new is not None and expected is not None:
        for ids in (torch.tensor([[3, 39]]), torch.arange(40).view(4, 10).T):
            torch.testing.assert_close(new(ids), expected(weight.dequantized()[ids]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_other_operation_gets_the_dequantized_matrix(dtype: torch.dtype) -> None:
    """In the type that the weight has as a tensor."""
    blocks, x = random_blocks("Q4_0", 40, 64), torch.randn(3, 64, dtype=dtype)
    weight = BlockTensor(blocks, "Q4_0", None, dtype)
    plain = torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_0)).to(dtype)
    assert torch.equal(functional.linear(x, weight), functional.linear(x, plain))
    assert torch.equal(weight.T + 1, plain.T + 1)
    assert torch.equal(torch.cat([weight, weight]), torch.cat([plain, plain]))
    assert torch.equal(weight.half(), plain.half())
    with shapes_only():
        assert torch.equal(functional.linear(x, weight), torch.zeros(3, 40, dtype=dtype))
        assert torch.equal(functional.embedding(torch.tensor([[3, 39]]), weight), torch.zeros(1, 2, 64, dtype=dtype))
        elsewhere = ThreadPoolExecutor(1).submit(functional.linear, x, weight).result()
        assert torch.equal(elsewhere, functional.linear(x, plain))
    with pytest.raises(IndexError), shapes_only():
        raise IndexError
    assert torch.equal(functional.linear(x, weight), functional.linear(x, plain))
    kept = (weight.detach(), weight[...], weight.to(dtype), nn.Parameter(weight, requires_grad=False))
    assert all(isinstance(tensor, BlockTensor) for tensor in kept)


def test_layers_with_the_same_input_are_one_product_of_blocks() -> None:
    order = np.random.default_rng(1).permutation(64)
    layers = []
    for weight in (stored("Q4_1", 64, 64, order=order), stored("Q4_1", 32, 64)):
        layer = nn.Linear(64, len(weight), bias=len(layers) == 1)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layers.append(layer)
    merged = MergedLinear(layers, lambda weight, bias: BlockLinear(Strips(weight, "Q4_1"), bias, INTEGERS))
    assert isinstance(joined([layer.weight for layer in layers]), BlockTensor)
    x = torch.randn(2, 64)
    with torch.inference_mode():
        for number, layer in enumerate(layers):
            expected = functional.linear(rounded(x), layer.weight.dequantized(), layer.bias)
            torch.testing.assert_close(merged.part(x, number), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("family", "quantization"), [("gpt2", "q4"), ("llama", "q8")])
def test_a_model_reads_fewer_bytes_and_answers_nearly_the_same(family: str, quantization: str) -> None:
    model = tiny_model(FAMILIES[family]())
    plain, small = load_model(model, EngineConfig()), load_model(model, EngineConfig(quantization=quantization))
    assert any(isinstance(module, BlockLinear) for module in small.model.modules())
    assert small.weight_bytes < {"q8": 0.6, "q4": 0.5}[quantization] * plain.weight_bytes
    params = SamplingParams(max_new_tokens=1, temperature=0.0, logprobs=1)
    logprobs = []
    for settings in ({}, {"quantization": quantization}):
        with Engine(model, num_blocks=32, threads=1, **settings) as engine:
            logprobs.append(engine.submit([5, 6, 7, 8, 9], params).result().logprobs[0].logprob)
    assert logprobs[0] == pytest.approx(logprobs[1], abs={"q8": 0.05, "q4": 0.3}[quantization])


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"pack_weights": False}, "needs pack_weights"), ({"dtype": "float16"}, "float32 or bfloat16")],
)
def test_what_cannot_be_quantized_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(quantization="q8", **settings)


def held_out(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Conversations from the embedded model's recipe that were not in its training data, as tokens."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "assets" / "tiny-chat" / "recipe")
    from corpus import serving  # type: ignore[import-not-found]

    chance, texts = random.Random(4711), []
    for _ in range(60):
        turn = serving.serving_turn(chance, held_out=True)
        chat = [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        texts.append(tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False))
    for name in [name for name in sys.modules if name.partition(".")[0] == "corpus"]:
        del sys.modules[name]
    return texts


@torch.inference_mode()
def test_perplexity_is_that_of_the_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    path = embedded_model()
    texts = held_out(AutoTokenizer.from_pretrained(path), monkeypatch)

    def loss(kind: str | None) -> float:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        assert kind is None or pack_linears(model, [], kind=kind) > 20
        total = tokens = 0.0
        for text in texts:
            ids = torch.tensor([text])
            total += float(functional.cross_entropy(model(ids).logits[0, :-1].float(), ids[0, 1:], reduction="sum"))
            tokens += len(text) - 1
        return total / tokens

    exact = loss(None)
    for kind, most in (("Q8_0", 1.002), ("Q4_1", 1.1)):
        ratio = float(np.exp(loss(kind) - exact))
        print(f"{kind}: perplexity x{ratio:.4f}")
        assert 0.98 < ratio < most
