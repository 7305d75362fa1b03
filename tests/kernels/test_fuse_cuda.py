"""What a GPU computes in fewer kernels: which modules are replaced, that logits stay, and how much is launched."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.kernels.cuda.fuse import TorchRMSNorm
from roseplay.kernels.replace_modules import replace_modules
from roseplay.model.attention.interface import Paged, make_backend
from roseplay.model.batch import build_batch
from roseplay.model.forward import PackedForward
from roseplay.model.kv_cache import KVCache
from roseplay.model.loaded_model import LoadedModel
from roseplay.model.loader import load_model
from roseplay.model.padding import dummy_batch
from roseplay.model.ranks import Ranks
from roseplay.model.states import StatePool
from tests.kernels.conftest import interpreted
from tests.kernels.emulation import emulate_gpu
from tests.kernels.launches import Launches
from tests.model.families import FAMILIES, STATEFUL, tiny_model
from tests.model.harness import eager_logits, random_tokens


def load(model: PreTrainedModel, ranks: Ranks | None = None, **settings: Any) -> LoadedModel:
    with emulate_gpu(kernels=True):
        return load_model(model, EngineConfig(attention="triton", **settings), ranks=ranks)


def replaced(model: nn.Module) -> dict[str, int]:
    """How many modules were replaced, by kind: a layer's and an attention module's forward count by their owners."""
    kinds = Counter(type(module).__name__ for module in model.modules())
    owners = [getattr(vars(module).get("forward"), "__self__", None) for module in model.modules()]
    forwards = Counter(type(owner).__name__ for owner in owners)
    names = ("MergedPart", "FusedRMSNorm", "GatedMLP")
    heads = sum("attend" in dir(f.__globals__.get("ALL_ATTENTION_FUNCTIONS")) for f in _functions(model))
    return {**{name: kinds[name] for name in names}, "heads": heads, "layers": forwards["FusedLayer"]}


def _functions(model: nn.Module) -> list[Any]:
    methods = [vars(module).get("forward") for module in model.modules()]
    return [method.__func__ for method in methods if hasattr(method, "__func__")]


# -- without Triton


@pytest.mark.parametrize(("family", "norms"), [("llama", 7), ("qwen3", 13), ("gpt_oss", 7)])
def test_norms_are_replaced_by_torchs_and_logits_stay(family: str, norms: int):
    model = tiny_model(FAMILIES[family]())
    plain = copy.deepcopy(model)
    assert replace_modules(model, TorchRMSNorm.of) == norms
    assert replace_modules(model, TorchRMSNorm.of) == 0
    tokens = random_tokens(20, 97, 1)
    assert (eager_logits(model, tokens) - eager_logits(plain, tokens)).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_norms_agree_but_for_rounding(dtype: torch.dtype):
    model = tiny_model(FAMILIES["llama"]()).to(dtype)
    assert replace_modules(model, TorchRMSNorm.of) == 7


def test_what_only_looks_like_a_norm_is_left_alone():
    for family in ("gemma2", "gpt2"):  # Gemma's norms multiply by 1 + weight
        assert replace_modules(tiny_model(FAMILIES[family]()), TorchRMSNorm.of) == 0


# -- with Triton


@interpreted
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_layer_takes_nine_launches(family: str):
    """A decode: four matrix products, attention, and one launch between each of these; also where programs share a context.

    What each program of attention reads is planned once a step for each kind of layer, of which Gemma has two.
    """
    counts = []
    for layers in (1, 2):
        config = FAMILIES[family]()
        config.num_hidden_layers = layers
        loaded = load(tiny_model(config).to(torch.bfloat16))
        with torch.inference_mode():
            counts.append(decode_launches(loaded))
    assert [count.pop("plan_kernel") for count in counts] == [1, 2 if "gemma" in family else 1]
    assert counts[1] - counts[0] == {
        "linear": 4, "add_norm_kernel": 2, "rotate_append_kernel": 1, "attend_kernel": 1, "gate_kernel": 1,
    }  # fmt: skip


def decode_launches(loaded: LoadedModel) -> Counter[str]:
    cache = KVCache(loaded.kv_shapes, num_blocks=4, block_size=16, dtype=loaded.dtype, device=loaded.device)
    batch = dummy_batch(1, row_tokens=1, block_size=16, start=700).upload(loaded.device)
    with Launches() as launches:
        PackedForward(loaded.model)(Paged(make_backend("triton", cache), batch))
    return launches.counts


@interpreted
@pytest.mark.parametrize(
    ("family", "parts", "norms", "gates", "heads", "layers"),
    [
        ("llama", 9, 7, 3, 3, 3),
        ("qwen3", 9, 13, 3, 3, 3),
        ("gemma3_text", 9, 19, 3, 3, 3),
        ("olmo2", 9, 13, 3, 3, 3),  # its norms come after attention and the MLP, and those of heads span all heads
        ("smollm3", 12, 9, 4, 3, 4),  # one layer does not rotate
        ("granite", 9, 7, 3, 3, 0),  # multiplies what it adds
        ("glm4", 9, 13, 0, 0, 3),  # rotates adjacent pairs
        ("gpt2", 0, 0, 0, 0, 0),
        ("granitemoehybrid", 3, 7, 0, 0, 0),  # does not rotate, although its attention could
    ],
)
def test_only_what_computes_the_same_is_replaced(
    family: str, parts: int, norms: int, gates: int, heads: int, layers: int
):
    """And steps compute the same logits."""
    model = tiny_model((FAMILIES | STATEFUL)[family]())
    fused = load(model)
    expected = {"MergedPart": parts, "FusedRMSNorm": norms, "GatedMLP": gates, "heads": heads, "layers": layers}
    assert replaced(fused.model) == expected
    if family in ("llama", "gemma3_text"):  # slow in the interpreter
        check_logits(model, fused)


@interpreted
def test_the_switch_leaves_everything_as_it_is():
    assert not any(replaced(load(tiny_model(FAMILIES["qwen3"]()), fuse_ops=False).model).values())


class ScalesQueries(LlamaAttention):
    """Scales queries after they are rotated, by 1 for the first positions."""

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: Any, attention_mask: Any, **more: Any
    ) -> tuple[torch.Tensor, Any]:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (
            layer(hidden_states).view(shape).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        out, weights = attend(self, q * 1.0, k, v, attention_mask, scaling=self.scaling, **more)
        return self.o_proj(out.reshape(*shape[:-2], -1)), weights


@interpreted
def test_attention_that_does_something_between_the_rotation_and_attention_keeps_its_forward():
    model = tiny_model(FAMILIES["llama"]())
    model.model.layers[1].self_attn.__class__ = ScalesQueries
    assert replaced(load(model).model)["heads"] == 2


@interpreted
def test_merged_weights_take_no_more_memory():
    """Biases too. A model in memory keeps its weights, and the merged ones are copies."""
    model = tiny_model(FAMILIES["qwen2"]())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    assert num_bytes(load(model)) - num_bytes(load(model, fuse_ops=False)) == 0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def num_bytes(loaded: LoadedModel) -> int:
    """Of all tensors of a model's modules, each storage counted once."""
    tensors = [*loaded.model.parameters(), *loaded.model.buffers()]
    for module in loaded.model.modules():
        merged = getattr(module, "merged", None)
        if merged is not None:
            tensors += merged.linear.parameters()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["qwen2", "qwen3", "gemma", "gemma2", "olmo2", "exaone4", "smollm3", "granite", "glm4", "phi3", "gpt_oss", "mixtral",
               "qwen3_moe", "cohere2", "deepseek_v3"],
)  # fmt: skip
def test_steps_of_more_families_compute_the_same_logits(family: str):
    model = tiny_model(FAMILIES[family]())
    check_logits(model, load(model))


def check_logits(model: PreTrainedModel, fused: LoadedModel) -> None:
    expected = [eager_logits(model, prompt) for prompt in prompts()]
    for (request, position), logits in logits_of(fused).items():
        assert (logits - expected[request][position]).abs().max() < 1e-3


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("family", STATEFUL)
def test_models_with_recurrent_layers_compute_the_same_logits(family: str):
    model = tiny_model(STATEFUL[family]())
    check_same(load(model), load(model, fuse_ops=False))


def check_same(fused: LoadedModel, plain: LoadedModel) -> None:
    expected = logits_of(plain)
    for place, logits in logits_of(fused).items():
        assert (logits - expected[place]).abs().max() < 1e-3


@interpreted
def test_parts_of_a_split_model_compute_the_same():
    """One process's part, whose results have no meaning without the others, but are the same."""
    model = tiny_model(FAMILIES["qwen3"]())
    fused, plain = (load(model, Ranks(1, 2, torch.device("cpu")), fuse_ops=on) for on in (True, False))
    assert replaced(fused.model) == {"MergedPart": 9, "FusedRMSNorm": 13, "GatedMLP": 3, "heads": 3, "layers": 3}
    check_same(fused, plain)


def prompts() -> list[list[int]]:
    return [random_tokens(7, 97, seed) for seed in (1, 2)]


def logits_of(loaded: LoadedModel) -> dict[tuple[int, int], torch.Tensor]:
    """By request and position: prompts in chunks and decodes, with blocks read and written by Triton's kernels."""
    cache = KVCache(loaded.kv_shapes, num_blocks=8, block_size=4, dtype=loaded.dtype, device=loaded.device)
    backend, forward = make_backend("triton", cache), PackedForward(loaded.model)
    requests = [Request(i, prompt, SamplingParams()) for i, prompt in enumerate(prompts())]
    requests[0].block_table, requests[1].block_table = [5, 2], [3, 7]
    requests[0].state_slot, requests[1].state_slot = 2, 1
    states = StatePool(loaded.state_shapes, 3, loaded.device) if loaded.state_shapes else None
    done, found = [0, 0], {}
    for counts in ([4, 0], [2, 6], [1, 1]):
        entries = [StepEntry(r, done[i], counts[i]) for i, r in enumerate(requests) if counts[i]]
        wanted, sizes = list(range(len(entries))), {"num_blocks": 8, "block_size": 4, "vocab_size": 97}
        batch = build_batch(Step(0, entries), wanted, **sizes, device=loaded.device)
        assert batch is not None
        with torch.inference_mode():
            logits = forward(Paged(backend, batch, states))
        done = [a + b for a, b in zip(done, counts, strict=True)]
        found |= {
            (e.request.request_id, done[e.request.request_id] - 1): row for e, row in zip(entries, logits, strict=True)
        }
    return found


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_are_rotated_and_written(dtype: torch.dtype):
    """Padded heads and dimensions, parts of one product, a token of padding, and numbers that are not finite."""
    from roseplay.kernels.cuda.rotate_append import fits, rotate_append

    torch.manual_seed(0)
    heads, kv_heads, dim, v_dim = 6, 3, 20, 9
    q, k = torch.randn(1, 4, 9 * dim, dtype=dtype).view(1, 4, 9, dim).transpose(1, 2).split([heads, kv_heads], 1)
    v = torch.randn(1, kv_heads, 4, v_dim, dtype=dtype)
    cos, sin = torch.randn(2, 1, 4, dim, dtype=dtype)
    v[0, 1, 2, 3], v[0, 0, 1, 0], v[0, 2, 0, 8] = torch.nan, torch.inf, -torch.inf
    keys, values = torch.ones(3, kv_heads, 4, dim, dtype=dtype), torch.ones(3, kv_heads, 4, v_dim, dtype=dtype)
    expected_q, expected_k = apply_rotary_pos_emb(q, k, cos, sin)
    assert fits(q, k, v, cos, sin)
    found = rotate_append(q, k, v, cos, sin, (None, None), keys, values, torch.tensor([5, 8, 11, -1]))
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(found, expected_q, **close)
    for token, (block, offset) in enumerate([(1, 1), (2, 0), (2, 3), (0, 0)]):
        torch.testing.assert_close(keys[block, :, offset], expected_k[0, :, token], **close)
        torch.testing.assert_close(values[block, :, offset], v[0, :, token], rtol=0, atol=0, equal_nan=True)
    assert (keys == 1).all(-1).sum() == (values == 1).all(-1).sum() == kv_heads * (3 * 4 - 4)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gelu", [False, True])
def test_gates_are_torchs_own(dtype: torch.dtype, gelu: bool):
    from roseplay.kernels.cuda.activations import ACTIVATIONS

    both = (torch.randn(1, 3, 2 * 1100, generator=torch.Generator().manual_seed(1)) * 5).to(dtype)
    both[0, 0, :3] = torch.tensor([1e4, -1e4, 0.0])
    gate, up = both.chunk(2, -1)
    active = functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)
    found = ACTIVATIONS[gelu](both)
    torch.testing.assert_close(found, active * up, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)
