"""Kernels that compute all rows of a packed batch with their recurrent states: transformers' results, row by row."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.bamba import modeling_bamba
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.core.step import DeviceLostError
from roseplay.model.loader import load_model
from roseplay.model.stateful import stateful_modules
from roseplay.model.states import PackedInputs, PackedRows, SlotStates
from tests.model.families import STATEFUL, VOCABULARY, tiny_model
from tests.model.harness import Driver, eager_logits, make_runner, random_tokens
from tests.model.test_families import LENGTHS, SCHEDULE
from tests.pairwise import each_value_of, product_of

DTYPES = [torch.float32, torch.bfloat16]


def numba() -> SimpleNamespace:
    pytest.importorskip("numba")
    from roseplay.kernels.cpu.states import chunked_delta_rule, chunked_mamba2, chunks, convolution, fuse

    return SimpleNamespace(
        convolve=convolution.causal_conv1d_fn,
        delta_rule=chunked_delta_rule.chunk_gated_delta_rule,
        mamba_2=chunked_mamba2.chunk_scan,
        fuse=fuse.fuse_states,
        chunk=chunks.CHUNK,
        by_channel=False,
    )


def triton() -> SimpleNamespace:
    if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is no Triton to interpret")
    from roseplay.kernels.cuda.states import convolution, delta_rule, fuse, mamba2

    return SimpleNamespace(
        convolve=convolution.causal_conv1d_fn,
        delta_rule=delta_rule.chunk_gated_delta_rule,
        mamba_2=mamba2.chunk_scan,
        fuse=fuse.fuse_states,
        chunk=32,  # of half precision; in float32 two chunks
        by_channel=True,
    )


@pytest.fixture(params=[numba, triton], ids=lambda kernels: str(kernels.__name__))
def kernels(request: pytest.FixtureRequest) -> Any:
    return request.param()


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


class Batch:
    """Packed rows of all lengths around that of a chunk, some of which go on from a state, and an empty one.

    Attributes:
        parts: the tokens of each row that is not empty, its slot, and whether it goes on.
    """

    def __init__(self, chunk: int) -> None:
        counts = np.array([1, chunk - 1, 1, 0, chunk, chunk + 1, 2 * chunk + 3])
        before = np.array([0, 0, 9, 0, 9, 0, 4])
        slots = [5, 2, 8, 0, 3, 1, 6]
        ends = np.concatenate([[0], counts.cumsum()])
        self.tokens, self.slots = int(ends[-1]), torch.tensor(slots)
        self.rows = PackedRows(torch.from_numpy(ends), torch.from_numpy(counts + before), ends, {})
        spans = zip(ends[:-1].tolist(), ends[1:].tolist(), slots, before.tolist(), strict=True)
        self.parts = [(slice(a, b), slot, bool(past)) for a, b, slot, past in spans if b > a]

    def states(self, tensor: torch.Tensor) -> SlotStates:
        return SlotStates(tensor, self.slots, self.rows)

    def check(
        self,
        plain: Callable[[slice, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
        found: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
        tolerance: float,
    ) -> None:
        """Compare with ``plain(tokens, state)`` of each row, which returns its output ``[1, tokens, ...]`` and state."""
        assert found.isfinite().all()
        for tokens, slot, goes_on in self.parts:
            state = before[slot : slot + 1]
            expected, kept = plain(tokens, state.clone() if goes_on else torch.zeros_like(state))
            for ours, theirs in ((found[:, tokens], expected), (after[slot : slot + 1], kept)):
                assert ours.dtype == theirs.dtype or theirs is kept
                close = {"rtol": tolerance, "atol": tolerance * float(theirs.abs().max())}
                torch.testing.assert_close(ours.float(), theirs.float(), **close)
        others = [slot for slot in range(len(before)) if slot not in [slot for _, slot, _ in self.parts]]
        assert torch.equal(after[others], before[others])


def tolerance_of(dtype: torch.dtype) -> float:
    return 4 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 2e-5


@product_of(shape=[(520, 4, 4), (24, 3, 3), (17, 5, 2)], activation=[None, "silu"], bias=[False, True], dtype=DTYPES)
def test_convolutions(
    shape: tuple[int, int, int], activation: str | None, bias: bool, dtype: torch.dtype, kernels: Any
) -> None:
    channels, inputs, width = shape
    batch = Batch(kernels.chunk)
    x = randn(1, batch.tokens, channels + 3, dtype=dtype)[:, :, :channels].transpose(1, 2)
    given = (randn(channels, width, dtype=dtype), randn(channels, dtype=dtype) if bias else None, activation)
    before = randn(9, channels, inputs, dtype=dtype)
    after = before.clone()

    def plain(tokens: slice, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.cat([state, x[:, :, tokens]], dim=-1)
        out = inspect.unwrap(modeling_qwen3_5.causal_conv1d_fn)(seen, *given)[:, :, inputs:]
        return out.transpose(1, 2), seen[:, :, -inputs:]

    found = kernels.convolve(PackedInputs(x, batch.states(after)), *given)
    batch.check(plain, found.transpose(1, 2), before, after, tolerance_of(dtype))


def check_delta_rule(kernels: Any, *inputs: torch.Tensor, tolerance: float | None = None) -> None:
    query, key, value, g, beta = inputs
    batch = Batch(kernels.chunk)
    before = randn(9, value.shape[2], key.shape[3], value.shape[3])
    after, options = before.clone(), {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    group = value.shape[2] // key.shape[2]

    def plain(tokens: slice, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = (x[:, tokens].repeat_interleave(group, dim=2) for x in (query, key))  # older versions do it before
        given = (q, k, value[:, tokens], g[:, tokens], beta[:, tokens])
        rule = (
            modeling_kimi_linear.recurrent_kimi_delta_attention
            if g.dim() == 4
            else modeling_qwen3_5.torch_recurrent_gated_delta_rule
        )
        return inspect.unwrap(rule)(*given, initial_state=state, **options)

    found, _ = kernels.delta_rule(query, key, value, g=g, beta=beta, initial_state=batch.states(after), **options)
    batch.check(plain, found, before, after, tolerance or tolerance_of(query.dtype))


def of_delta_rule(
    tokens: int, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Returns random queries, keys and values, as the projections return them, and the logarithms of decays and gates."""
    k_heads, v_heads, k_dim, v_dim = shape
    mixed = randn(1, tokens, 2 * k_heads * k_dim + v_heads * v_dim, dtype=dtype)
    query, key, value = mixed.split([k_heads * k_dim, k_heads * k_dim, v_heads * v_dim], dim=-1)
    of_keys, of_values = (1, tokens, k_heads, k_dim), (1, tokens, v_heads, v_dim)
    gates = randn(*of_values[:3], dtype=dtype).sigmoid()
    return query.reshape(of_keys), key.reshape(of_keys), value.reshape(of_values), -randn(*of_values[:3]).abs(), gates


@each_value_of(shape=[(2, 4, 8, 12), (1, 1, 40, 64), (1, 2, 5, 33)], dtype=DTYPES)
def test_delta_rules(shape: tuple[int, int, int, int], dtype: torch.dtype, kernels: Any) -> None:
    check_delta_rule(kernels, *of_delta_rule(Batch(kernels.chunk).tokens, shape, dtype))


@each_value_of(shape=[(2, 2, 8, 12), (1, 1, 40, 64)], decay=[1, 30], dtype=DTYPES)
def test_delta_rules_with_a_decay_of_each_channel(
    shape: tuple[int, int, int, int], decay: int, dtype: torch.dtype
) -> None:
    """Also where channels forget all within a few tokens, while others remember."""
    kernels = triton()
    tokens = Batch(kernels.chunk).tokens
    query, key, value, _, gates = of_delta_rule(tokens, shape, dtype)
    g = -randn(*key.shape).abs() * torch.where(torch.arange(shape[2]) % 2 == 0, decay, 0.01)
    check_delta_rule(kernels, query, key, value, g, gates, tolerance=max(decay * 3e-5, tolerance_of(dtype)))


@pytest.mark.parametrize("case", ["a token again and again", "all is forgotten"])
def test_delta_rules_in_which_rounding_might_grow(case: str, kernels: Any) -> None:
    """The powers of a triangular matrix of ones grow as binomials do; the exponential of a sum of decays overflows."""
    query, key, value, g, beta = of_delta_rule(Batch(kernels.chunk).tokens, (1, 2, 8, 12))
    if case == "all is forgotten":
        g = 30 * g
    else:
        key, g, beta = key[:, :1].expand_as(key), 0 * g, torch.ones_like(beta)
    check_delta_rule(kernels, query, key, value, g, beta, tolerance=1e-3)  # decays are differences of sums up to 1,500


@product_of(shape=[(4, 2, 8, 16), (3, 1, 33, 40)], state_dtype=DTYPES, dtype=DTYPES)
def test_mamba_2(shape: tuple[int, int, int, int], state_dtype: torch.dtype, dtype: torch.dtype, kernels: Any) -> None:
    heads, groups, dim, size = shape
    batch = Batch(kernels.chunk)
    tokens = batch.tokens
    x, dt = randn(1, tokens, heads, dim, dtype=dtype), 3 * randn(1, tokens, heads, dtype=dtype)
    B, C = (randn(1, tokens + i, groups, size, dtype=dtype)[:, i:] for i in (1, 2))
    options = {
        "chunk_size": 16,
        "D": randn(heads, dtype=dtype),
        "z": None,
        "dt_bias": randn(heads, dtype=dtype),
        "dt_softplus": True,
        "dt_limit": (0.1, 5.0),
        "return_final_states": True,
    }
    before = randn(9, heads, dim, size, dtype=state_dtype)
    after, A = before.clone(), -randn(heads).abs()

    def plain(part: slice, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scan = inspect.unwrap(modeling_bamba.mamba2_chunk_scan)
        out, kept = scan(x[:, part], dt[:, part], A, B[:, part], C[:, part], initial_states=state, **options)
        return out, kept.to(state_dtype)

    found, _ = kernels.mamba_2(x, dt, A, B, C, initial_states=batch.states(after), **options)
    batch.check(
        plain, found, before, after, tolerance_of(torch.bfloat16 if torch.bfloat16 in (dtype, state_dtype) else dtype)
    )


def test_what_they_do_not_compute_is_refused(kernels: Any) -> None:
    batch = Batch(kernels.chunk)
    x, states = randn(1, 6, batch.tokens), batch.states(randn(9, 6, 4))
    with pytest.raises(ValueError, match="the activation tanh"):
        kernels.convolve(PackedInputs(x, states), randn(6, 4), activation="tanh")
    with pytest.raises(ValueError, match="inputs without states"):
        kernels.convolve(x, randn(6, 4))
    given = of_delta_rule(batch.tokens, (1, 1, 8, 8))
    with pytest.raises(ValueError, match="no norm"):
        kernels.delta_rule(*given, initial_state=batch.states(randn(9, 1, 8, 8)))
    with pytest.raises(ValueError, match="tokens are not known"):
        single = SlotStates(randn(9, 1, 8, 8), batch.slots)
        kernels.delta_rule(*given, initial_state=single, use_qk_l2norm_in_kernel=True)


def loaded(family: str, dtype: str) -> PreTrainedModel:
    model = load_model(tiny_model(STATEFUL[family]()), EngineConfig(device="cpu", dtype=dtype, fuse_ops=False)).model
    assert packed(model) == {False}
    return model


def packed(model: PreTrainedModel) -> set[bool]:
    """Returns whether the modules with a state compute packed rows by kernels."""
    return {stateful.packed is not None for _, stateful in stateful_modules(model)}


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_5_text", "bfloat16"),
        ("lfm2", "float32"),
        ("falcon_h1", "bfloat16"),
        ("jamba", "float32"),
        ("kimi_linear", "float32"),
        *(
            pytest.param(family, dtype, marks=pytest.mark.slow)
            for family in sorted(STATEFUL)
            for dtype in ("float32", "bfloat16")
        ),
    ],
)
def test_models_compute_prompts_by_them(family: str, dtype: str, kernels: Any) -> None:
    """There are no kernels for the prompts of Mamba, nor on a CPU for decays of each channel."""
    model = loaded(family, dtype)
    kernels.fuse(model)
    missing = {"jamba", "zamba"} | (set() if kernels.by_channel else {"kimi_linear"})
    assert packed(model) == {family not in missing}


@pytest.mark.parametrize(
    "family", ["qwen3_5_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bamba", "kimi_linear"))]
)
def test_logits_equal_eager_whatever_a_step_computes(family: str, kernels: Any) -> None:
    model = tiny_model(STATEFUL[family]())
    prompts = [random_tokens(length, VOCABULARY, seed) for seed, length in enumerate(LENGTHS)]
    runner = make_runner(model, fuse_ops=False, record_steps=False)
    kernels.fuse(runner.loaded.model)
    driver = Driver(runner, prompts)
    for counts in SCHEDULE:
        for i, logits in driver.step(counts).items():
            assert (logits - eager_logits(model, prompts[i])[driver.computed[i] - 1]).abs().max() < 1e-4


@pytest.mark.parametrize("function", ["torch_chunk_gated_delta_rule", "causal_conv1d_fn"])
def test_a_module_whose_function_computes_something_else_keeps_it(
    function: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, model = getattr(modeling_qwen3_5, function), loaded("qwen3_5_text", "float32")

    def other(*args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        return (found[0] * 1.1, found[1]) if isinstance(found, tuple) else found * 1.1

    with monkeypatch.context() as patched:
        patched.setattr(modeling_qwen3_5, function, other)
        kernels.fuse(model)
        assert packed(model) == {False}
    kernels.fuse(model)
    assert packed(model) == {True}


def test_a_kernel_that_does_not_compile_leaves_the_models_code(caplog: pytest.LogCaptureFixture) -> None:
    """And the engine says why its prompts are slow."""
    triton()
    from triton.compiler import CompilationError

    from roseplay.kernels.cuda.accelerator import CudaAccelerator
    from roseplay.kernels.replace_states import prefill_by

    def fails(*arguments: Any, **more: Any) -> Any:
        raise CompilationError(None, None, "invalid operands of type pointer<int64>")

    runner = make_runner(tiny_model(STATEFUL["qwen3_5_text"]()), fuse_ops=False, record_steps=False)
    model = runner.loaded.model
    prefill_by(model, {"causal_conv1d_fn": fails})
    assert packed(model) == {False}
    assert "computed by the model's code: CompilationError" in caplog.text
    config: Any = EngineConfig(tensor_parallel_size=2)  # without graphs
    started = CudaAccelerator(runner._run, runner.loaded, runner.backend, config, Reporter())
    choice = next(choice for choice in started.choices() if choice.part == "prompts of recurrent layers")
    assert choice.slow is not None and "invalid operands of type pointer<int64>" in choice.slow


def test_a_lost_device_is_not_mistaken_for_a_missing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from roseplay.kernels.replace_states import prefill_by

    def fails(*arguments: Any, **more: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLostError, match="illegal memory access"):
        prefill_by(loaded("qwen3_5_text", "float32"), {"causal_conv1d_fn": fails})


@pytest.mark.parametrize(
    "family", ["qwen3_5_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bamba", "kimi_linear"))]
)
def test_nothing_is_compiled_while_serving(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing a module's functions compiles all variants of the kernels that its prompts launch."""
    kernels = triton()
    from roseplay.kernels.cuda.states import convolution, delta_rule, mamba2
    from tests.kernels.triton_jit import variants

    runner = make_runner(tiny_model(STATEFUL[family]()), num_blocks=400, fuse_ops=False, record_steps=False)
    model = runner.loaded.model
    kernels.fuse(model)
    forwards = [(stateful, stateful.packed) for _, stateful in stateful_modules(model)]
    with variants(monkeypatch, convolution, delta_rule, mamba2) as compiled:
        kernels.fuse(model)  # nothing is computed, so these are refused
        at_start = set(compiled)
        assert {name for name, _ in at_start} >= {"convolve_kernel", "scan_kernel"}
        for stateful, forward in forwards:
            stateful.packed = forward
        driver = Driver(runner, [random_tokens(200, VOCABULARY, i) for i in range(6)])
        for counts in ({0: 100, 1: 3}, {0: 1, 1: 16, 2: 2}, {3: 33, 0: 1, 1: 1}, {4: 128, 5: 17}, {2: 31}):
            driver.step(counts)
        assert compiled == at_start


COMPILE = Path(__file__).with_name("compile_states.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("architecture", "kilobytes"), [("80", 163), ("89", 99), ("90", 227), ("100", 227), ("gfx942", 64)]
)
def test_kernels_compile_and_fit(architecture: str, kilobytes: int, tmp_path: Path, repository: Path) -> None:
    """Uses Triton's own compiler and assembler, which need no GPU."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(repository)}
    command = [sys.executable, str(COMPILE), architecture, str(kilobytes * 1024)]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
