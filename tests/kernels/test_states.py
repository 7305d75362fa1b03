"""Kernels that compute with recurrent states in their slots: transformers' results, and no other slot changed.

The decodes of a step are computed by one kind of kernels, all rows of a packed batch by another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.bamba import modeling_bamba
from transformers.models.jamba import modeling_jamba
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.core.step import DeviceLostError
from roseplay.model.loader import load_model
from roseplay.model.stateful import stateful_modules
from roseplay.model.states import PackedInputs, PackedRows, SlotStates
from tests.kernels.conftest import interpreted
from tests.kernels.triton_jit import variants
from tests.model.families import STATEFUL, VOCABULARY, tiny_model
from tests.model.harness import Driver, eager_logits, make_runner, random_tokens
from tests.model.test_families import LENGTHS, SCHEDULE
from tests.pairwise import each_value_of

pytest.importorskip("numba")
from roseplay.kernels.cpu.states import chunked_delta_rule, chunked_mamba2, chunks, convolution, mamba, mamba2
from roseplay.kernels.cpu.states import fuse as fuse_cpu
from roseplay.kernels.cpu.states.delta_rule import recurrent_gated_delta_rule

DTYPES = [torch.float32, torch.bfloat16]
Sizes = tuple[int, int, int, int]


def numba() -> SimpleNamespace:
    return SimpleNamespace(
        convolve=convolution.causal_conv1d_fn,
        delta_rule=chunked_delta_rule.chunk_gated_delta_rule,
        mamba_2=chunked_mamba2.chunk_scan,
        fuse=fuse_cpu.fuse_states,
        chunk=chunks.CHUNK,
        channels=520,
        without_prompts={"jamba", "zamba", "kimi_linear"},  # Mamba's, and decays of each channel
        without_decodes={"zamba"},  # it splits its states by head
    )


def triton() -> SimpleNamespace:
    from roseplay.kernels.cuda.states import convolution, delta_rule, fuse, mamba2

    return SimpleNamespace(
        convolve=convolution.causal_conv1d_fn,
        delta_rule=delta_rule.chunk_gated_delta_rule,
        mamba_2=mamba2.chunk_scan,
        fuse=fuse.fuse_states,
        chunk=32,  # of half precision; in float32 two chunks
        channels=72,
        without_prompts={"jamba", "zamba"},
        without_decodes=set(STATEFUL),
    )


@pytest.fixture(params=[numba, pytest.param(triton, marks=interpreted)], ids=lambda kernels: str(kernels.__name__))
def kernels(request: pytest.FixtureRequest) -> Any:
    return request.param()


convolutions = pytest.mark.parametrize(
    ("shape", "activation", "bias", "dtype"),
    [  # channels, 0 for more than a program computes; inputs that are kept; width
        ((0, 4, 4), "silu", True, torch.bfloat16),
        ((24, 3, 3), None, True, torch.float32),
        ((17, 5, 2), "silu", False, torch.float32),
        ((17, 5, 2), None, False, torch.bfloat16),
    ],
)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def tolerance_of(*dtypes: torch.dtype) -> float:
    return 4 * torch.finfo(torch.bfloat16).eps if torch.bfloat16 in dtypes else 2e-5


def of_delta_rule(lead: tuple[int, int], sizes: Sizes, dtype: torch.dtype, *, by_channel: bool) -> dict[str, Any]:
    """Returns random queries, keys and values, as the projections return them, the logarithms of decays, and gates.

    Args:
        lead: the first two dimensions, of rows and tokens.
        sizes: heads of keys and of values, and their dimensions.
    """
    k_heads, v_heads, k_dim, v_dim = sizes
    mixed = randn(*lead, 2 * k_heads * k_dim + v_heads * v_dim, dtype=dtype)
    query, key, value = mixed.split([k_heads * k_dim, k_heads * k_dim, v_heads * v_dim], dim=-1)
    heads = (*lead, v_heads)
    return {
        "query": query.reshape(*lead, k_heads, k_dim),
        "key": key.reshape(*lead, k_heads, k_dim),
        "value": value.reshape(*lead, v_heads, v_dim),
        "g": -randn(*heads, *([k_dim] if by_channel else [])).abs(),
        "beta": randn(*heads, dtype=dtype).sigmoid(),
    }


def plain_delta_rule(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, **more: Any) -> Any:
    group = value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(group, dim=2) for x in (query, key))  # older versions do it before
    by_channel = modeling_kimi_linear.recurrent_kimi_delta_attention
    rule = by_channel if g.dim() == 4 else modeling_qwen3_5.torch_recurrent_gated_delta_rule
    return inspect.unwrap(rule)(query, key, value, g=g, **more)


# -- decodes

SLOTS = torch.tensor([5, 2, 3])  # of seven slots
ROWS = len(SLOTS)


def check(
    plain: Callable[..., Any],
    kernel: Callable[..., Any],
    states: torch.Tensor,
    dtype: torch.dtype,
    *,
    first: str,
    **given: Any,
) -> None:
    """Call both with the same arguments; ``plain`` gets a copy of the rows' states as its argument ``first``."""
    before, slotted, copied = states.clone(), states.clone(), states[SLOTS].clone()
    expected = inspect.unwrap(plain)(**{first: copied}, **given)
    found = kernel(**{first: SlotStates(slotted, SLOTS)}, **given)
    if isinstance(expected, tuple):  # the delta rule returns its states
        (expected, copied), found = expected, found[0]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    torch.testing.assert_close(slotted[SLOTS], copied, rtol=tolerance, atol=tolerance * float(copied.abs().max()))
    others = [slot for slot in range(len(states)) if slot not in SLOTS.tolist()]
    assert torch.equal(slotted[others], before[others])


@convolutions
def test_convolutions_of_a_token(
    shape: tuple[int, int, int], activation: str | None, bias: bool, dtype: torch.dtype
) -> None:
    channels, inputs, width = shape[0] or 1030, *shape[1:]
    check(
        modeling_qwen3_5.causal_conv1d_update,
        convolution.causal_conv1d_update,
        randn(7, channels, inputs, dtype=dtype),
        dtype,
        first="conv_state",
        hidden_states=randn(ROWS, 1, channels + 3, dtype=dtype)[:, :, :channels].transpose(1, 2),
        weight=randn(channels, width, dtype=dtype),
        bias=randn(channels, dtype=dtype) if bias else None,
        activation=activation,
    )


@pytest.mark.parametrize(
    ("sizes", "by_channel", "dtype"),
    [
        ((2, 4, 8, 8), False, torch.bfloat16),
        ((3, 3, 128, 64), False, torch.float32),
        ((3, 3, 128, 64), True, torch.bfloat16),
        ((1, 2, 5, 33), False, torch.float32),
    ],
)
def test_delta_rules_of_a_token(sizes: Sizes, by_channel: bool, dtype: torch.dtype) -> None:
    _, v_heads, k_dim, v_dim = sizes
    check(
        plain_delta_rule,
        recurrent_gated_delta_rule,
        randn(7, v_heads, k_dim, v_dim),
        dtype,
        first="initial_state",
        **of_delta_rule((ROWS, 1), sizes, dtype, by_channel=by_channel),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


@each_value_of(sizes=[(8, 2, 8, 8), (3, 1, 5, 40)], gated=[False, True], state_dtype=DTYPES[::-1], dtype=DTYPES)
def test_mamba_2_of_a_token(sizes: Sizes, gated: bool, state_dtype: torch.dtype, dtype: torch.dtype) -> None:
    heads, groups, dim, size = sizes

    def of_heads(x: torch.Tensor) -> torch.Tensor:
        return x[..., None].expand(*x.shape, dim)

    check(
        modeling_bamba.mamba2_selective_state_update,
        mamba2.selective_state_update,
        randn(7, heads, dim, size, dtype=state_dtype),
        dtype,
        first="state",
        hidden_states=randn(ROWS, heads, dim, dtype=dtype),
        dt=of_heads(randn(ROWS, heads, dtype=dtype) * 9),
        A=(-randn(heads).abs())[:, None, None].expand(heads, dim, size),
        B=randn(ROWS, groups, size, dtype=dtype),
        C=randn(ROWS, groups, size, dtype=dtype),
        D=of_heads(randn(heads, dtype=dtype)),
        dt_bias=of_heads(randn(heads, dtype=dtype)),
        dt_softplus=True,
        z=randn(ROWS, heads, dim, dtype=dtype) if gated else None,
    )


@each_value_of(shape=[(24, 16), (300, 5)], state_dtype=DTYPES[::-1], dtype=DTYPES)
def test_mamba_of_a_token(shape: tuple[int, int], state_dtype: torch.dtype, dtype: torch.dtype) -> None:
    channels, size = shape
    check(
        modeling_jamba.mamba_selective_state_update,
        mamba.selective_state_update,
        randn(7, channels, size, dtype=state_dtype),
        dtype,
        first="state",
        hidden_states=randn(channels, ROWS, dtype=dtype).T,
        dt=randn(ROWS, channels, dtype=dtype) * 9,
        A=-randn(channels, size).abs(),
        B=randn(ROWS, size, dtype=dtype),
        C=randn(ROWS, size, dtype=dtype),
        D=randn(channels, dtype=dtype),
        dt_bias=randn(channels),
        dt_softplus=True,
        z=randn(ROWS, channels, dtype=dtype),
    )


def test_what_they_do_not_compute_of_a_token_is_refused() -> None:
    x, states, update = randn(ROWS, 6, 1), SlotStates(randn(7, 6, 4), SLOTS), convolution.causal_conv1d_update
    with pytest.raises(ValueError, match="the activation tanh"):
        update(x, states, randn(6, 4), activation="tanh")
    with pytest.raises(ValueError, match="float64"):
        update(x.double(), states, randn(6, 4).double())
    with pytest.raises(ValueError, match="one token"):
        update(randn(ROWS, 6, 2), states, randn(6, 4))


# -- packed rows


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


@convolutions
def test_convolutions(
    shape: tuple[int, int, int], activation: str | None, bias: bool, dtype: torch.dtype, kernels: Any
) -> None:
    channels, inputs, width = shape[0] or kernels.channels, *shape[1:]
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


def check_delta_rule(kernels: Any, given: dict[str, Any], tolerance: float | None = None) -> None:
    value, batch = given["value"], Batch(kernels.chunk)
    before = randn(9, value.shape[2], given["key"].shape[3], value.shape[3])
    after, options = before.clone(), {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

    def plain(tokens: slice, state: torch.Tensor) -> Any:
        return plain_delta_rule(**{name: x[:, tokens] for name, x in given.items()}, initial_state=state, **options)

    found, _ = kernels.delta_rule(**given, initial_state=batch.states(after), **options)
    batch.check(plain, found, before, after, tolerance or tolerance_of(value.dtype))


def delta_rule_of(kernels: Any, sizes: Sizes, dtype: torch.dtype = torch.float32, **more: Any) -> dict[str, Any]:
    return of_delta_rule((1, Batch(kernels.chunk).tokens), sizes, dtype, **{"by_channel": False, **more})


@each_value_of(sizes=[(1, 1, 40, 64), (2, 4, 8, 8), (1, 2, 5, 33)], dtype=DTYPES)
def test_delta_rules(sizes: Sizes, dtype: torch.dtype, kernels: Any) -> None:
    check_delta_rule(kernels, delta_rule_of(kernels, sizes, dtype))


@interpreted
@each_value_of(sizes=[(2, 2, 8, 12), (1, 1, 40, 64)], decay=[1, 30], dtype=DTYPES)
def test_delta_rules_with_a_decay_of_each_channel(sizes: Sizes, decay: int, dtype: torch.dtype) -> None:
    """Also where channels forget all within a few tokens, while others remember."""
    kernels = triton()
    given = delta_rule_of(kernels, sizes, dtype, by_channel=True)
    given["g"] = given["g"] * torch.where(torch.arange(sizes[2]) % 2 == 0, decay, 0.01)
    check_delta_rule(kernels, given, max(decay * 3e-5, tolerance_of(dtype)))


@pytest.mark.parametrize("case", ["a token again and again", "all is forgotten"])
def test_delta_rules_in_which_rounding_might_grow(case: str, kernels: Any) -> None:
    """The powers of a triangular matrix of ones grow as binomials do; the exponential of a sum of decays overflows."""
    given = delta_rule_of(kernels, (2, 4, 8, 8))
    if case == "all is forgotten":
        given["g"] = 30 * given["g"]
    else:
        key, g, beta = given["key"], given["g"], given["beta"]
        given |= {"key": key[:, :1].expand_as(key), "g": 0 * g, "beta": torch.ones_like(beta)}
    check_delta_rule(kernels, given, 1e-3)  # decays are differences of sums up to 1,500


@each_value_of(sizes=[(8, 2, 8, 8), (3, 1, 33, 40)], state_dtype=DTYPES[::-1], dtype=DTYPES)
def test_mamba_2(sizes: Sizes, state_dtype: torch.dtype, dtype: torch.dtype, kernels: Any) -> None:
    heads, groups, dim, size = sizes
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
    batch.check(plain, found, before, after, tolerance_of(dtype, state_dtype))


def test_what_they_do_not_compute_is_refused(kernels: Any) -> None:
    batch = Batch(kernels.chunk)
    x, states = randn(1, 6, batch.tokens), batch.states(randn(9, 6, 4))
    with pytest.raises(ValueError, match="the activation tanh"):
        kernels.convolve(PackedInputs(x, states), randn(6, 4), activation="tanh")
    with pytest.raises(ValueError, match="inputs without states"):
        kernels.convolve(x, randn(6, 4))
    given = delta_rule_of(kernels, (1, 1, 8, 8))
    with pytest.raises(ValueError, match="no norm"):
        kernels.delta_rule(**given, initial_state=batch.states(randn(9, 1, 8, 8)))
    with pytest.raises(ValueError, match="tokens are not known"):
        single = SlotStates(randn(9, 1, 8, 8), batch.slots)
        kernels.delta_rule(**given, initial_state=single, use_qk_l2norm_in_kernel=True)


# -- models


def loaded(family: str, dtype: str = "float32") -> PreTrainedModel:
    model = load_model(tiny_model(STATEFUL[family]()), EngineConfig(device="cpu", dtype=dtype, fuse_ops=False)).model
    assert by_kernels(model, "in_place") == by_kernels(model, "packed") == {False}
    return model


def by_kernels(model: PreTrainedModel, what: str) -> set[bool]:
    """Returns whether the modules with a state compute decodes (``in_place``) or packed rows by kernels."""
    return {getattr(stateful, what) is not None for _, stateful in stateful_modules(model)}


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_5_text", "bfloat16"),
        ("lfm2", "float32"),
        ("bamba", "float32"),
        ("jamba", "float32"),
        ("kimi_linear", "float32"),
        *(
            pytest.param(family, dtype, marks=pytest.mark.slow)
            for family in sorted(STATEFUL)
            for dtype in ("float32", "bfloat16")
        ),
    ],
)
def test_models_compute_by_them(family: str, dtype: str, kernels: Any) -> None:
    model = loaded(family, dtype)
    kernels.fuse(model)
    assert by_kernels(model, "packed") == {family not in kernels.without_prompts}
    assert by_kernels(model, "in_place") == {family not in kernels.without_decodes}


@pytest.mark.parametrize(
    "family", ["qwen3_5_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bamba", "kimi_linear"))]
)
def test_logits_equal_eager_whatever_a_step_computes(family: str, kernels: Any) -> None:
    config = STATEFUL[family]()
    config.num_hidden_layers = 2
    if "layer_types" in vars(config):
        config.layer_types = config.layer_types[:2]
    model = tiny_model(config)
    prompts = [random_tokens(length, VOCABULARY, seed) for seed, length in enumerate(LENGTHS)]
    expected = [eager_logits(model, prompt) for prompt in prompts]
    runner = make_runner(model, fuse_ops=False, record_steps=False)
    kernels.fuse(runner.loaded.model)
    driver = Driver(runner, prompts)
    for counts in SCHEDULE:
        for i, logits in driver.step(counts).items():
            assert (logits - expected[i][driver.computed[i] - 1]).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("function", "what", "dtype"),
    [
        ("torch_chunk_gated_delta_rule", "packed", "float32"),
        ("causal_conv1d_fn", "packed", "float32"),
        ("torch_recurrent_gated_delta_rule", "in_place", "float32"),
        ("torch_recurrent_gated_delta_rule", "in_place", "bfloat16"),
    ],
)
def test_a_module_whose_function_computes_something_else_keeps_it(
    function: str, what: str, dtype: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "in_place" and kernels.without_decodes >= {"qwen3_5_text"}:
        pytest.skip("it has no kernels for decodes")
    plain, model = getattr(modeling_qwen3_5, function), loaded("qwen3_5_text", dtype)

    def other(*args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        out, *state = found if isinstance(found, tuple) else (found,)
        out = out + out.abs().mean() / 4
        return (out, *state) if state else out

    with monkeypatch.context() as patched:
        patched.setattr(modeling_qwen3_5, function, other)
        kernels.fuse(model)
    assert by_kernels(model, what) == {False}


@interpreted
def test_a_kernel_that_does_not_compile_leaves_the_models_code(caplog: pytest.LogCaptureFixture) -> None:
    """And the engine says why its prompts are slow."""
    from triton.compiler import CompilationError

    from roseplay.kernels.cuda.accelerator import CudaAccelerator
    from roseplay.kernels.replace_states import prefill_by
    from roseplay.model.accelerator import Parts

    def fails(*arguments: Any, **more: Any) -> Any:
        raise CompilationError(None, None, "invalid operands of type pointer<int64>")

    runner = make_runner(tiny_model(STATEFUL["qwen3_5_text"]()), fuse_ops=False, record_steps=False)
    prefill_by(runner.loaded.model, {"causal_conv1d_fn": fails})
    assert by_kernels(runner.loaded.model, "packed") == {False}
    assert "computed by the model's code: CompilationError" in caplog.text
    config: Any = EngineConfig(tensor_parallel_size=2)  # without graphs
    started = CudaAccelerator(Parts(fails, runner.loaded, runner.backend, config, Reporter()))
    choice = next(choice for choice in started.choices() if choice.part == "prompts of recurrent layers")
    assert choice.slow is not None and "invalid operands of type pointer<int64>" in choice.slow


def test_a_lost_device_is_not_mistaken_for_a_missing_kernel() -> None:
    from roseplay.kernels.replace_states import prefill_by

    def fails(*arguments: Any, **more: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLostError, match="illegal memory access"):
        prefill_by(loaded("qwen3_5_text"), {"causal_conv1d_fn": fails})


@interpreted
@pytest.mark.parametrize(
    "family", ["qwen3_5_text", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bamba", "kimi_linear"))]
)
def test_nothing_is_compiled_while_serving(family: str) -> None:
    """Replacing a module's functions compiles all variants of the kernels that its prompts launch."""
    from roseplay.kernels.cuda.states import convolution, delta_rule, mamba2

    runner = make_runner(tiny_model(STATEFUL[family]()), num_blocks=400, fuse_ops=False, record_steps=False)
    model, fuse = runner.loaded.model, triton().fuse
    fuse(model)
    forwards = [(stateful, stateful.packed) for _, stateful in stateful_modules(model)]
    with variants(convolution, delta_rule, mamba2) as compiled:
        fuse(model)  # nothing is computed, so these are refused
        at_start = set(compiled)
        assert {name for name, _ in at_start} >= {"convolve_kernel", "scan_kernel"}
        for stateful, forward in forwards:
            stateful.packed = forward
        driver = Driver(runner, [random_tokens(200, VOCABULARY, i) for i in range(6)])
        for counts in ({0: 100, 1: 3}, {0: 1, 1: 16, 2: 2}, {3: 33, 0: 1, 1: 1}, {4: 128, 5: 17}, {2: 31}):
            driver.step(counts)
        assert compiled == at_start
