"""Weights in int8: exact products of the rounded numbers, a small rounding error, and half the bytes."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from roseplay import Engine, EngineConfig, SamplingParams
from roseplay.kernels.cpu.int8_linear import Int8Linear, quantize
from roseplay.kernels.cpu.pack import pack_linears
from roseplay.kernels.cpu.products import Products
from roseplay.kernels.merge import MergedPart
from roseplay.model.loader import load_model
from roseplay.model.source import embedded_model
from tests.kernels.conftest import needs_packed_bfloat16
from tests.model.families import FAMILIES, tiny_model

KINDS = {"tiles": Products(True, 1), "vectors": Products(True), "torch": Products(False)}


@pytest.fixture(params=KINDS)
def products(request: pytest.FixtureRequest) -> Products:
    if request.param != "torch":
        int8 = pytest.importorskip("roseplay.kernels.cpu.int8", reason="Numba is not installed")
        if not (int8.has_tiles() if request.param == "tiles" else int8.available()):
            pytest.skip("this CPU has no such instructions")
    return KINDS[request.param]


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x, with each row rounded to 255 values."""
    largest = x.float().abs().amax(-1, keepdim=True)
    return (x.float() * (127 / largest)).round() * (largest / 127)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 16, 17, 32, 33, 100])
@pytest.mark.parametrize(("inner", "outer"), [(64, 32), (200, 50), (2048, 96)])
def test_a_product_is_that_of_the_rounded_numbers(
    products: Products, rows: int, inner: int, outer: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows * inner)
    weight, bias = torch.randn(outer, inner, dtype=dtype), torch.randn(outer, dtype=dtype)
    numbers, scales = quantize(weight)
    x = torch.randn(2, rows, inner, dtype=dtype)
    x[0, 0] = 0
    with torch.inference_mode():
        found = Int8Linear(weight, bias, products)(x)
    kept = x.float() if not products.strips else rounded(x).nan_to_num()
    expected = functional.linear(kept, numbers.float() * scales[:, None], bias.float())
    assert (found.shape, found.dtype) == ((2, rows, outer), dtype)
    # A number halfway between two of the 255 values may be rounded to either.
    loose = 0.03 * float(scales.max()) * 127 * float(x.float().abs().max()) if products.strips else 0.0
    close = {"rtol": 8e-3, "atol": 1e-2 + loose} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-3 + loose}
    torch.testing.assert_close(found.float(), expected, **close)


def test_a_weight_that_is_stored_transposed_is_multiplied_too(products: Products) -> None:
    """GPT-2's layers store theirs as ``[in, out]``."""
    stored, x = torch.randn(64, 32), torch.randn(3, 64)
    with torch.inference_mode():
        assert torch.equal(Int8Linear(stored.T, None, products)(x), Int8Linear(stored.T.clone(), None, products)(x))


def test_all_kinds_give_the_same_numbers_however_many_rows_there_are() -> None:
    int8 = pytest.importorskip("roseplay.kernels.cpu.int8", reason="Numba is not installed")
    if not int8.available():
        pytest.skip("this CPU has no such instructions")
    torch.manual_seed(1)
    weight, x = torch.randn(70, 192), torch.randn(40, 192)
    layers = [Int8Linear(weight, None, KINDS[kind]) for kind in ("tiles", "vectors")]
    with torch.inference_mode():
        together = layers[0](x)
        assert torch.equal(layers[1](x), together)
        assert all(torch.equal(layer(x[row : row + 1])[0], together[row]) for layer in layers for row in (0, 17, 39))


def test_a_row_of_x_is_refused_that_the_weight_does_not_fit() -> None:
    with pytest.raises(RuntimeError):
        Int8Linear(torch.randn(8, 64), None)(torch.randn(2, 32))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_reads_fewer_bytes_and_answers_nearly_the_same(family: str) -> None:
    model = tiny_model(FAMILIES[family]())
    plain, small = load_model(model, EngineConfig()), load_model(model, EngineConfig(quantization="int8"))
    layers = [module for module in small.model.modules() if isinstance(module, Int8Linear | MergedPart)]
    assert layers
    assert small.weight_bytes < 0.5 * plain.weight_bytes
    params = SamplingParams(max_new_tokens=1, temperature=0.0, logprobs=1)
    found = []
    for settings in ({}, {"quantization": "int8"}):
        with Engine(model, num_blocks=32, threads=1, **settings) as engine:
            found.append(engine.submit([5, 6, 7, 8, 9], params).result().logprobs[0].logprob)
    assert found[0] == pytest.approx(found[1], abs=0.05)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"pack_weights": False}, "needs pack_weights"), ({"dtype": "float16"}, "float32 or bfloat16")],
)
def test_what_cannot_be_quantized_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(quantization="int8", **settings)


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


@needs_packed_bfloat16
@torch.inference_mode()
def test_perplexity_is_within_one_percent_of_bfloat16(products: Products, monkeypatch: pytest.MonkeyPatch) -> None:
    path = embedded_model()
    texts = held_out(AutoTokenizer.from_pretrained(path), monkeypatch)
    monkeypatch.setattr("roseplay.kernels.cpu.pack.choose", lambda *_, **__: products)

    def loss(int8: bool) -> float:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        if int8:
            assert pack_linears(model, [], int8=True) > 20
        total = tokens = 0.0
        for text in texts:
            ids = torch.tensor([text])
            total += float(functional.cross_entropy(model(ids).logits[0, :-1].float(), ids[0, 1:], reduction="sum"))
            tokens += len(text) - 1
        return total / tokens

    ratio = float(torch.tensor(loss(True) - loss(False)).exp())
    print(f"perplexity x{ratio:.4f}")
    assert 0.99 < ratio < 1.01
