"""Metrics in each server's format: a real vLLM's; the other texts were written by hand from the servers' documentation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from roseplay.engine.telemetry import Load
from roseplay.extras.servers.load import (
    LOAD_NAMES,
    MOST_LINE,
    MOST_REPLICAS,
    MOST_SAMPLES,
    load_names,
    read_blocks,
    read_load,
)
from roseplay.formats.json_schema import check
from roseplay.recording.schema import FRAME

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 5.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B"} 7.0
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.0
vllm:num_requests_waiting{engine="1",model_name="meta-llama/Llama-3.1-8B"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="meta-llama/Llama-3.1-8B"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.5e+06
vllm:prefix_cache_hits_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 600000.0
vllm:prefix_cache_hits_created{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.7e+09
vllm:num_preemptions_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 3.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27000"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="a"} 12.0
"""

SGLANG = """\
sglang:num_running_reqs{model_name="qwen",tp_rank="0"} 11.0
sglang:num_queue_reqs{model_name="qwen",tp_rank="0"} 4.0
sglang:token_usage{model_name="qwen",tp_rank="0"} 0.31
sglang:cache_hit_rate{model_name="qwen"} 0.4
sglang:realtime_tokens_total{mode="prefill_compute",model_name="qwen"} 600.0
sglang:realtime_tokens_total{mode="prefill_cache",model_name="qwen"} 400.0
sglang:realtime_tokens_total{mode="decode",model_name="qwen"} 9000.0
sglang:cached_tokens_total{cache_source="device",model_name="qwen"} 399.0
sglang:num_retracted_requests_total{model_name="qwen"} 1.0
sglang:cache_config_info{num_pages="5000",page_size="64"} 1.0
"""

LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 100
llamacpp:prompt_tokens_cached_total 300
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:n_busy_slots_per_decode 1.5
"""

TGI = """\
tgi_queue_size 6
tgi_batch_current_size 12
tgi_batch_current_max_tokens 3000
tgi_request_count{method="generate"} 90
"""

TRTLLM = """\
trtllm_num_requests_waiting{model_name="m"} 1.0
trtllm_num_requests_running{model_name="m"} 2.0
trtllm_kv_cache_utilization{model_name="m"} 0.5
"""


@pytest.mark.parametrize(
    ("text", "dialect", "figures", "blocks"),
    [
        (VLLM, "vllm", (12, 2, 0.5, 1_500_000, 600_000, 3), (16, 27000)),
        (SGLANG, "sglang", (11, 4, 0.31, 1000, 400, 1, 9000), (64, 5000)),
        (LLAMACPP, "llamacpp", (2, 1, None, 400, 300, None), None),
        (TGI, "tgi", (12, 6, None, None, None, None), None),
        (TRTLLM, "trtllm", (2, 1, 0.5, None, None, None), None),
    ],
    ids=["vLLM", "SGLang", "llama.cpp", "TGI", "TensorRT-LLM"],
)
def test_each_servers_names(
    text: str, dialect: str, figures: tuple[float | None, ...], blocks: tuple[int, int] | None
) -> None:
    names = load_names(text)
    assert names is not None and names.dialect == dialect
    load = read_load(text, names, 7)
    assert (load.time_ns, load.total) == (7, Load(*figures))  # type: ignore[arg-type]
    assert read_blocks(text, names) == blocks


def test_all_that_a_real_vllm_counts_is_read() -> None:
    """Of version 0.32, after eleven requests; it counts drafts only if it speculates."""
    text = Path(__file__).with_name("vllm_metrics.txt").read_text()
    text += "vllm:spec_decode_num_draft_tokens_total 40.0\nvllm:spec_decode_num_accepted_tokens_total 30.0\n"
    names = load_names(text)
    assert names is not None and read_blocks(text, names) == (128, 16384)
    assert read_load(text, names, 0).total == Load(
        running=0,
        waiting=0,
        kv_usage=0.0,
        prefix_queries=3044,
        prefix_hits=1792,
        preemptions=0,
        generation_tokens=531,
        computed_tokens=1252,
        external_tokens=0,
        steps=114,
        step_tokens=1783,
        first_tokens=11,
        ttft_s=pytest.approx(0.473, abs=0.001),
        gaps=520,
        itl_s=pytest.approx(4.550, abs=0.001),
        ended=11,
        queue_s=pytest.approx(0.0054, abs=0.0001),
        prefill_s=pytest.approx(0.151, abs=0.001),
        decode_s=pytest.approx(4.550, abs=0.001),
        draft_tokens=40,
        accepted_tokens=30,
        rejected=0,
        deferred=0,
        awake=1,
    )


def test_engines_behind_one_address_are_told_apart() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {usage}\n'
        for engine, running, usage in (("0", 3, 0.2), ("1", 5, 0.6))
    )
    names = load_names(text)
    assert names is not None
    load = read_load(text, names, 0)
    assert (load.total.running, load.total.kv_usage) == (8, pytest.approx(0.4))
    assert {name: (each.running, each.kv_usage) for name, each in load.replicas.items()} == {
        "0": (3, 0.2),
        "1": (5, 0.6),
    }
    ended = "".join(f'vllm:num_preemptions_total{{engine="{number}",ended="true"}} 7\n' for number in (1, 2))
    load = read_load(text + ended, names, 0)
    assert load.total.preemptions == 14
    assert {name: each.preemptions for name, each in load.replicas.items()} == {"0": None, "1": None}
    alone = text.split('vllm:num_requests_running{engine="1"')[0]
    assert read_load(alone, names, 0).replicas == {}


def test_older_names() -> None:
    text = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:gpu_prefix_cache_hits_total{model_name="m"} 2\n'
    names = load_names(text)
    assert names is not None
    load = read_load(text, names, 0).total
    assert (load.kv_usage, load.prefix_hits, load.prefix_queries, load.running) == (0.5, 2, None, None)
    sglang = 'sglang:cached_tokens_total{cache_source="device"} 5\nsglang:cached_tokens_total{cache_source="host"} 2\n'
    names = load_names(sglang)
    assert names is not None and read_load(sglang, names, 0).total.prefix_hits == 7


@pytest.mark.parametrize("text", ["", "[]", '[{"iter": 1}]', "# TYPE vllm:x gauge\n", "go_threads 8\n"])
def test_metrics_of_something_else(text: str) -> None:
    assert load_names(text) is None


def test_samples_that_cannot_be_read_are_skipped() -> None:
    text = 'vllm:num_requests_running{a="b} c\nvllm:num_requests_running NaN\nvllm:num_requests_running{x="y\\"}"} 4 1700\n'
    names = load_names(text)
    assert names is not None
    assert read_load(text, names, 0).total.running == 4


def test_an_exemplar_is_not_part_of_the_labels() -> None:
    text = 'vllm:num_requests_running{engine="0",model="}"} 4 # {trace_id="a"} 9.5 1700\n'
    names = load_names(text)
    assert names is not None and read_load(text, names, 0).total.running == 4


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1e308", "9e999", "1e12x", ""])
def test_a_figure_that_cannot_be_true_is_left_out(value: str) -> None:
    families = ("vllm:num_requests_running", "vllm:num_preemptions_total", "vllm:prefix_cache_hits_total")
    text = "".join(f'{name}{{engine="0"}} 3\n{name}{{engine="1"}} {value}\n' for name in families)
    load = read_load(text, LOAD_NAMES[0], 0)
    assert (load.total.running, load.total.preemptions, load.total.prefix_hits) == (3, 3, 3)
    assert load.replicas == {}


def test_figures_at_their_limits_are_read() -> None:
    text = "vllm:kv_cache_usage_perc 1.0\nvllm:num_requests_running 0\nvllm:prefix_cache_queries_total 1e12\n"
    full = read_load(text, LOAD_NAMES[0], 0).total
    assert (full.kv_usage, full.running, full.prefix_queries) == (1.0, 0, 10**12)
    check([{"t": 0.0, **asdict(full)}], FRAME["fields"]["loads"])  # a recording of it can be read
    config = 'vllm:cache_config_info{{block_size="{}",num_gpu_blocks="{}"}} 1.0\n'
    assert read_blocks(config.format(2**16, 2**24 - 1), LOAD_NAMES[0]) == (2**16, 2**24 - 1)
    other = config.replace("info", "info_created").format(8, 9)
    assert read_blocks(other + config.format(16, 100), LOAD_NAMES[0]) == (16, 100)
    for beyond in ((2**16 + 1, 100), (16, 2**24), (0, 100), (16, "1e3")):
        assert read_blocks(config.format(*beyond), LOAD_NAMES[0]) is None


def test_a_sum_beyond_what_columns_hold_is_left_out() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{engine}"}} 2e9\n' for engine in (0, 1))
    text += "vllm:kv_cache_usage_perc 55.0\nvllm:num_requests_waiting 1\n"
    load = read_load(text, LOAD_NAMES[0], 0)
    assert (load.total.running, load.total.kv_usage, load.total.waiting) == (None, None, 1)
    assert [each.running for each in load.replicas.values()] == [2_000_000_000] * 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        "vllm:x{%s} 1",
        "vllm:x{a=%s} 1",
        'vllm:x{a="%s',
        'vllm:x{a="\\%s} 1',
        "vllm:%s",
        "vllm:x %s",
        'vllm:x{a="1"%s',
        "%s",
    ],
)
@pytest.mark.parametrize("filling", ["a", " ", "\\", '"', "{", "}", "} ", ",", "=", '=",', 'a="",', "\t\r"])
def test_time_is_linear_in_the_length_of_a_line(line: str, filling: str) -> None:
    line = line % (filling * ((MOST_LINE - 30) // len(filling)))
    text = f"{line}\nvllm:num_requests_running 4\n"
    assert read_load(text, LOAD_NAMES[0], 0).total.running == 4
    read_blocks(text.replace("vllm:x", "vllm:cache_config_info"), LOAD_NAMES[0])


def test_lines_samples_and_replicas_are_bounded() -> None:
    def running(engine: object, value: int = 1) -> str:
        return f'vllm:num_requests_running{{engine="{engine}"}} {value}\n'

    long = running("x" * (MOST_LINE - len(running("")) + 1))
    assert len(long) == MOST_LINE + 1  # with its line feed
    assert read_load(long, LOAD_NAMES[0], 0).total.running == 1
    assert read_load(long.replace("x", "xx", 1) + running(7, 2), LOAD_NAMES[0], 0).total.running == 2
    many = read_load("".join(running(engine) for engine in range(MOST_SAMPLES + 5)), LOAD_NAMES[0], 0)
    assert many.total.running == MOST_SAMPLES and len(many.replicas) == MOST_REPLICAS
    text = "".join(running(engine) for engine in range(MOST_REPLICAS + 5))
    first = read_load(text + 'vllm:num_requests_waiting{engine="0"} 6\n', LOAD_NAMES[0], 0).replicas["0"]
    assert (first.running, first.waiting) == (1, 6)
    others = "".join(f'vllm:e2e_bucket{{le="{bound}"}} 1\n' for bound in range(MOST_SAMPLES))
    assert read_load(others + running(0), LOAD_NAMES[0], 0).total.running == 1


def test_a_name_that_no_terminal_or_page_can_show_is_no_replica() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{name}"}} 1\n' for name in ("0", "1", "\x1b[31m", "x" * 300))
    load = read_load(text, LOAD_NAMES[0], 0)
    assert load.total.running == 4 and list(load.replicas) == ["0", "1"]
