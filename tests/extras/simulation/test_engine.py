"""The real engine with a runner that only waits: in real time, and on a virtual clock."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from roseplay import Engine
from roseplay.clock import VirtualClock
from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineStartError
from roseplay.extras.simulation.evidence import cost_model
from roseplay.extras.simulation.gpus import find_gpu
from roseplay.extras.simulation.models import find_shape
from roseplay.play.options import parse
from tests.model.families import FAMILIES, tiny_model

HUGE = {"run_as": "h200", "tensor_parallel_size": 8, "max_model_len": 8192}


def test_a_simulated_gpu_has_a_model_of_its_size_unless_one_is_asked_for() -> None:
    options = parse(["--run-as", "h100"])
    assert options.model == "qwen3-8b" and "qwen3-8b" in str(options.chosen)
    assert parse(["--run-as", "h100", "--model", "tiny-chat"]).model == "tiny-chat"


def test_a_large_model_answers_on_hardware_that_is_not_here() -> None:
    with Engine("llama-3.1-70b", **HUGE, clock=VirtualClock()) as engine:
        assert engine.info.device == "simulated 8 x H200 SXM"
        assert engine.info.simulated is not None
        assert engine.worker_pid is None  # eight simulated GPUs need no process
        stream = engine.submit("What is a KV block?", SamplingParams(max_new_tokens=40)).result(30)
    assert stream.text.startswith("This answer is simulated: no model has read your question.")
    cost, _ = cost_model(find_shape("llama-3.1-70b"), find_gpu("h200"), 8)
    context = stream.metrics.prompt_tokens + 20
    assert statistics.median(stream.metrics.itl_s) == pytest.approx(cost.seconds(cost.decode(1, context)), rel=1e-3)
    assert stream.metrics.tpot_s == pytest.approx(statistics.median(stream.metrics.itl_s), rel=1e-3)


def test_the_system_clock_waits_for_each_step() -> None:
    with Engine("qwen3-8b", run_as="l4", max_model_len=2048) as engine:
        stream = engine.submit("Hello", SamplingParams(max_new_tokens=5)).result(30)
        took_s = engine.info.decode_s
    assert stream.metrics.e2e_s is not None
    assert stream.metrics.e2e_s >= 0.99 * 4 * took_s  # from the submit, as the first token may be published late


def test_a_pool_that_is_too_small_preempts_and_all_answers_are_complete() -> None:
    with Engine("qwen3-8b", run_as="h100", num_blocks=40, max_model_len=500, clock=VirtualClock()) as engine:
        streams = [engine.submit([n + 1] * 100, SamplingParams(max_new_tokens=200)) for n in range(8)]
        tokens = [stream.result(30).token_ids for stream in streams]
    assert all(answer == tokens[0] and len(answer) == 200 for answer in tokens)
    assert sum(stream.metrics.num_preemptions for stream in streams) > 0


def test_requests_with_log_probabilities_fail_alone() -> None:
    with Engine("qwen3-8b", run_as="h100", clock=VirtualClock()) as engine:
        refused = engine.submit([5] * 9, SamplingParams(logprobs=1)).result(30)
        also = engine.submit([6] * 9, SamplingParams(prompt_logprobs=1)).result(30)
        served = engine.submit([7] * 9).result(30)
    assert refused.error == also.error == "a simulated model has no log-probabilities"
    assert (served.error, len(served.token_ids)) == (None, 128)


def test_a_model_in_memory_and_a_config_are_enough(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 3000}
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    for model in (str(tmp_path), tiny_model(FAMILIES["llama"]())):
        with Engine(model, run_as="a100", clock=VirtualClock()) as engine:
            assert len(engine.submit([3, 4, 5], SamplingParams(max_new_tokens=4)).result(30).token_ids) == 4


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        (
            "llama-3.1-70b",
            {"run_as": "h100"},
            "llama-3.1-70b does not fit on H100 SXM: its bf16 weights take 131.4 GiB",
        ),
        ("qwen3-8b", {"run_as": "h1000"}, "run_as is 'h1000': use one of a100"),
        ("qwen3-8b", {"run_as": "h100", "tensor_parallel_size": 3}, "32 attention heads, which cannot be divided"),
        ("qwen3-8b", {"run_as": "h100", "quantization": "q8"}, "quantization q8 cannot be simulated"),
        ("qwen3-8b", {"run_as": "h100", "kv_dtype": "int8"}, "kv_dtype int8 cannot be simulated"),
        ("qwen3.5-0.8b", {"run_as": "h100"}, "layers of the kind linear_attention"),
    ],
)
def test_refusals_are_one_line(model: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(EngineStartError, match=said) as error:
        Engine(model, **settings)
    assert "\n" not in str(error.value)
