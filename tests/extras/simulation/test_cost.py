from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import roseplay.extras.simulation
from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.extras.simulation.cost import CPU_REPLAYED_TOKENS, CPU_SHORT_PART, CostModel, Parameters, StepLoad, padded
from roseplay.extras.simulation.evidence import cost_model
from roseplay.extras.simulation.gpus import GPU, SimulationError, find_gpu, gpus
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.models import find_shape
from roseplay.kernels.cpu.attention.plan import SHORT_QUERIES
from roseplay.kernels.cpu.recorded_steps import SIZES
from tests.extras.simulation.test_model_shape import MIXTRAL


def cost(model: str = "qwen3-8b", gpu: str = "h100", parts: int = 1, weights: str | None = None) -> CostModel:
    return CostModel(find_shape(model, weights), find_gpu(gpu), parts)


def request(tokens: int) -> Request:
    return Request(tokens, [1] * tokens, SamplingParams())


CPU = GPU(name="cpu", title="", memory_gib=9, bandwidth_tb_s=0.02, bf16_tflops=0.1, cpu=True, source="")
LOADS = [cost().decode(1, 100), cost().decode(100, 5000), cost().prompt(3000), StepLoad(5, 1004, 1000, 9000, 2e6)]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("parts", [1, 8])
def test_a_steps_duration_is_linear_in_the_parameters(load: StepLoad, parts: int) -> None:
    model = cost(parts=parts)
    assert model.seconds(load) == pytest.approx(float(model.terms(load) @ model.parameters.as_vector()), rel=1e-12)


def test_more_tokens_of_a_mixture_read_more_experts() -> None:
    mixture = CostModel(ModelShape.of_config(MIXTRAL, name="m"), find_gpu("h100"), 2)
    for load in (mixture.decode(1, 100), mixture.decode(8, 100), mixture.prompt(50)):
        assert mixture.seconds(load) == pytest.approx(float(mixture.terms(load) @ mixture.parameters.as_vector()))
    assert mixture.seconds(mixture.decode(8, 0)) > 2 * mixture.seconds(mixture.decode(1, 0))
    assert cost_model(mixture.shape, mixture.gpu)[1].bound is None  # never compared with measurements
    assert 0 < (cost_model(cost().shape, mixture.gpu)[1].bound or 0) < 1


def test_many_contexts_at_once_give_exactly_the_single_durations() -> None:
    model = cost()
    contexts = np.arange(10_000, 20_000, 77)
    found = model.seconds(StepLoad(64, 64, 0, contexts, 0))
    assert list(found) == [model.seconds(StepLoad(64, 64, 0, int(one), 0)) for one in contexts]


def test_the_weights_are_read_once_whatever_the_batch() -> None:
    """Qwen3-8B in bf16: 15.1 GB of weights at 90% of 3.35 TB/s, and 55 us for each of 36 layers."""
    one = cost().seconds(cost().decode(1, 0))
    assert one == pytest.approx(15.14e9 / (0.9 * 3.35e12) + 36 * 55e-6, rel=0.01)
    assert cost().seconds(cost().decode(8, 0)) < 1.05 * one


def test_a_prompt_in_parts_computes_what_the_whole_does() -> None:
    model = cost()
    fixed = model.seconds(StepLoad(tokens=1))
    parts = [StepLoad(0, 1000, 1000, 0, (i + 1) ** 2 * 1e6 - i**2 * 1e6) for i in range(4)]
    whole = StepLoad(0, 4000, 4000, 0, 16e6)
    assert sum(model.seconds(part) - fixed for part in parts) == pytest.approx(model.seconds(whole) - fixed)


def test_a_steps_load_is_read_from_its_entries() -> None:
    step = Step(0)
    step.entries = [
        StepEntry(request(31), 30, 1),  # a decode
        StepEntry(request(51), 50, 1),
        StepEntry(request(100), 40, 60, 60),  # the rest of a prompt: such a step is not replayed, and not padded to 4
        StepEntry(request(5), 5, 0),  # served by the cache
    ]
    assert StepLoad.of_step(step) == StepLoad(3, 62, 60, 31 + 51 + 100, 100**2 - 40**2)
    step.entries = step.entries[:1] * 5
    assert StepLoad.of_step(step).sequences == 8
    step.cuda_graphs = False
    assert StepLoad.of_step(step).sequences == 5
    assert cost().seconds(StepLoad.of_step(Step(1))) == 0


def test_a_cpu_replays_steps_of_short_parts_whose_tokens_attend_one_by_one() -> None:
    """The limits are those of the kernels."""
    assert (SHORT_QUERIES, SIZES[-1]) == (CPU_SHORT_PART, CPU_REPLAYED_TOKENS)
    step = Step(0)
    step.entries = [StepEntry(request(31), 30, 1), StepEntry(request(100), 40, 32, 32)]
    attended = 31 + sum(range(41, 41 + 32))
    assert StepLoad.of_step(step, cpu=True) == StepLoad(2, 33, 32, attended, 0, eager=False)
    step.entries[1] = StepEntry(request(100), 40, 60, 60)
    assert StepLoad.of_step(step, cpu=True) == StepLoad(2, 61, 60, 31, 100**2 - 40**2, eager=True)
    step.entries = [StepEntry(request(31), 30, 1)] * 513
    assert StepLoad.of_step(step, cpu=True).eager
    model = CostModel(cost().shape, CPU)
    assert [model.decode(sequences, 31).eager for sequences in (512, 513)] == [False, True]
    assert not cost().decode(513, 31).eager


def test_graph_sizes() -> None:
    assert [padded(n) for n in (0, 1, 3, 8, 9, 250, 257, 512, 513)] == [0, 1, 4, 8, 16, 256, 272, 512, 513]


def test_each_term_counts_what_its_description_says() -> None:
    """Qwen3-8B, 36 layers of 32 heads of 128 features, 4,096 hidden features; a prompt of 1,000 tokens on four H100."""
    model = cost(parts=4)
    terms = model.terms(model.prompt(1000))
    cached = 1000 * 36 * 2 * 8 * 128 * 2 / 4
    assert terms[0] == pytest.approx((model.shape.bytes_read(1) / 4 + cached) / 3.35e12)
    assert list(terms[1:3]) == [36, 36 / 4]
    attention = 2 * 36 * 32 * (128 + 128) * 1000**2  # of the whole square, although half of it is masked
    assert terms[3] == pytest.approx((2 * model.shape.active * 1000 + attention) / (4 * 989e12))
    all_reduced = 2 * 36 * 1000 * 4096 * 2  # bytes in bf16, twice in each layer
    assert terms[4] == pytest.approx(all_reduced * 2 * 3 / 4 / 450e9)
    assert not terms[5:].any()


@pytest.mark.parametrize("context", [0, 4000])
@pytest.mark.parametrize("gpu", ["h100", "cpu"])
def test_as_many_prompt_tokens_as_fit_into_a_time(gpu: str, context: int) -> None:
    model = cost() if gpu == "h100" else CostModel(cost().shape, CPU)
    seconds = model.seconds(StepLoad(1, 1, 1, 0 if model.gpu.cpu else context, 0, model.gpu.cpu))
    seconds *= 40 if model.gpu.cpu else 5
    tokens, load = model.prompt_tokens_in(seconds, context), StepLoad()
    load.add(context, tokens, prompt=True, cpu=model.gpu.cpu)
    assert tokens > 32
    assert model.seconds(load) == pytest.approx(seconds, rel=0.05)
    assert model.prompt_tokens_in(0.0, context) == 0


def test_more_gpus_share_the_work_and_exchange_activations() -> None:
    decode, prompt = cost().decode(8, 1000), cost().prompt(4096)
    one, eight = cost(), cost(parts=8)
    assert one.seconds(decode) / 8 < eight.seconds(decode) < one.seconds(decode)
    assert one.seconds(prompt) / 8 < eight.seconds(prompt) < one.seconds(prompt)
    pcie = CostModel(one.shape, find_gpu("h100-pcie"), 8)
    assert pcie.terms(prompt)[4] == pytest.approx(eight.terms(prompt)[4] * 450 / 64)


def test_eight_bits_are_multiplied_faster_only_where_the_gpu_can() -> None:
    prompt = cost().prompt(8192)
    assert cost(weights="fp8").seconds(prompt) < 0.9 * cost().seconds(prompt)
    assert cost(gpu="a100", weights="fp8").terms(prompt)[3] == cost(gpu="a100").terms(prompt)[3]
    assert Parameters.default(find_gpu("a100"), "fp8").compute_share == 0.67


def test_refusals_are_one_line_with_the_numbers() -> None:
    with pytest.raises(SimulationError, match="32 attention heads, which cannot be divided among 5 GPUs"):
        cost(parts=5)
    with pytest.raises(SimulationError, match="link between GPUs of the kind A30"):
        cost(gpu="a30", parts=2)
    with pytest.raises(SimulationError, match=r"one token of qwen3-8b would take 3,60\d s on H100 SXM"):
        CostModel(cost().shape, find_gpu("h100"), 1, Parameters(layer_s=100))
    with pytest.raises(SimulationError, match="did you mean h100") as error:
        find_gpu("h1000")
    assert "mi300x" in str(error.value)


def test_every_gpu_has_a_source_and_plausible_rates() -> None:
    assert find_gpu(" H100 ") is gpus()["h100"]
    for gpu in gpus().values():
        assert gpu.source
        operations_per_byte = gpu.bf16_tflops / gpu.bandwidth_tb_s
        assert 30 < operations_per_byte < 450, f"{gpu.name}: is its rate that of sparse matrices?"
        assert gpu.fp8_tflops is None or 1.9 < gpu.fp8_tflops / gpu.bf16_tflops < 2.1


def test_it_needs_no_torch() -> None:
    folder = Path(roseplay.extras.simulation.__file__).parent
    names = [f"roseplay.extras.simulation.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"]
    script = "import sys\n" + "".join(f"import {name}\n" for name in names) + "print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "transformers", "tokenizers", "gradio"} & set(loaded.stdout.split())
