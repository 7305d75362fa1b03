"""``/metrics``: the families that dashboards made for vLLM query, with values from the telemetry."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.client import Engine
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import StepEvent, TokenEvent
from roseplay.serve.app import ServedEngine
from roseplay.serve.metrics import Metrics
from roseplay.serve.monitor import Monitor
from tests.play.fake_engine import INFO, FakeEngine
from tests.serve.conftest import app_of, serving
from tests.serve.dashboards import DOES_NOT_APPLY, LIMITS, QUERIED
from tests.waiting import wait_until


class Scrape:
    """The result of one scrape: samples by name."""

    def __init__(self, address: str) -> None:
        answer = httpx.get(f"{address}/metrics", timeout=30)
        assert answer.status_code == 200, answer.text
        self.families = list(text_string_to_metric_families(answer.text))
        self.samples: dict[str, list[Any]] = {}
        for family in self.families:
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append(sample)

    def value(self, name: str, **labels: str) -> float:
        found = [s.value for s in self.samples[f"vllm:{name}"] if labels.items() <= s.labels.items()]
        assert len(found) == 1, (name, labels, found)
        return float(found[0])


@pytest.fixture
def fresh() -> Iterator[tuple[Engine, str]]:
    """An engine that has not served any request, and its address."""
    config = EngineConfig(worker="thread", threads=1, num_blocks=50, max_waiting=4)
    with Engine("tiny-chat", config=config) as engine, serving(engine) as address:
        yield engine, address


def test_the_first_scrape_has_all_that_dashboards_query(fresh: tuple[Engine, str]) -> None:
    httpx.get(f"{fresh[1]}/v1/models")  # dashboards divide by the number of replies, so there must be some
    scrape = Scrape(fresh[1])
    missing = {}
    for metric, (labels, values) in QUERIED.items():
        if metric.startswith(tuple(DOES_NOT_APPLY)):
            assert metric not in scrape.samples, f"{metric} exists, though it is said not to apply"
            continue
        samples = scrape.samples.get(metric, [])
        fits = [sample for sample in samples if labels <= set(sample.labels)]
        named = {} if metric == "http_requests_total" else values  # no reply was a 5xx yet
        if not fits or any({fit.labels[name] for fit in fits} < set(named[name]) for name in named):
            missing[metric] = (labels, values, samples[:2])
    assert not missing
    for metric, bounds in LIMITS.items():
        assert set(bounds) <= {sample.labels["le"] for sample in scrape.samples[metric]}


def test_each_reason_for_leaving_a_metric_out_is_needed() -> None:
    assert [begin for begin in DOES_NOT_APPLY if not any(metric.startswith(begin) for metric in QUERIED)] == []


def test_drafts_are_counted_and_tokens_that_come_together_have_one_gap(fresh: tuple[Engine, str]) -> None:
    engine, address = fresh
    engine.set_knobs(speculative_tokens=5, lookup_ngram=1)
    params = SamplingParams(max_new_tokens=60, frequency_penalty=-1.0, ignore_eos=True)
    stream = engine.submit([100, 101, 102] * 8, params).result(60)
    value = Scrape(address).value
    steps = [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]
    accepted = sum(step.accepted_tokens for step in steps)
    assert value("spec_decode_num_drafts_total") == sum(step.draft_tokens > 0 for step in steps) > 0
    assert value("spec_decode_num_draft_tokens_total") == sum(step.draft_tokens for step in steps)
    assert value("spec_decode_num_accepted_tokens_total") == accepted > 0
    each = Scrape(address).samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    counts = {int(sample.labels["position"]): sample.value for sample in each}
    assert sum(counts.values()) == accepted
    assert [counts[at] for at in sorted(counts)] == sorted(counts.values(), reverse=True)
    assert value("inter_token_latency_seconds_count") == 59 - accepted == len(stream.metrics.itl_s)
    assert stream.metrics.itl_ns.count(0) == accepted


def test_counters_and_histograms_tell_what_happened(fresh: tuple[Engine, str]) -> None:
    engine, address = fresh
    prompt = list(range(100, 140))
    first = engine.submit(prompt, SamplingParams(max_new_tokens=7, ignore_eos=True)).result(60)
    again = engine.submit(prompt, SamplingParams(max_new_tokens=3, ignore_eos=True)).result(60)
    aborted = engine.submit(prompt, SamplingParams(max_new_tokens=600, ignore_eos=True))
    assert aborted.wait_for_first_token(60)
    aborted.cancel()
    streams = [first, again, aborted.result(60)]
    generated = sum(len(stream.token_ids) for stream in streams)
    cached = sum(stream.metrics.cached_tokens for stream in streams)
    assert cached >= len(prompt)  # otherwise nothing would be tested

    scrape = Scrape(address)
    value = scrape.value
    assert value("prompt_tokens_total") == value("prefix_cache_queries_total") == 3 * len(prompt)
    assert value("prefix_cache_hits_total") == value("prompt_tokens_cached_total") == cached
    assert value("prompt_tokens_by_source_total", source="local_compute") == 3 * len(prompt) - cached
    assert value("prompt_tokens_by_source_total", source="local_cache_hit") == cached
    assert value("generation_tokens_total") == generated
    for reason, count in {FinishReason.LENGTH: 2, FinishReason.ABORT: 1, FinishReason.STOP: 0}.items():
        assert value("request_success_total", finished_reason=str(reason)) == count
    assert value("time_to_first_token_seconds_sum") == pytest.approx(sum(s.metrics.ttft_s or 0 for s in streams))
    assert value("inter_token_latency_seconds_count") == generated - 3
    gaps = sum(sum(stream.metrics.itl_s) for stream in streams)
    assert value("inter_token_latency_seconds_sum") == pytest.approx(gaps)
    assert value("iteration_tokens_total_sum") >= generated - 3
    assert value("num_requests_running") == value("num_requests_waiting") == value("kv_cache_usage_perc") == 0


def test_methods_that_no_one_knows_are_one_label(address: str) -> None:
    odd = ("LOCK", "MKCOL", "PROPFIND")  # uvicorn's parsers accept these, and one of them accepts any word
    for method in (*odd, "OPTIONS"):
        httpx.request(method, f"{address}/health", timeout=30)
    methods = {sample.labels["method"] for sample in Scrape(address).samples["http_requests_total"]}
    assert {"other", "OPTIONS"} <= methods and methods.isdisjoint(odd)


def test_what_is_counted_while_the_first_scrape_makes_the_families_is_kept() -> None:
    class Served:
        @property
        def engine(self) -> Any:
            if counting.ident is None:  # the scrape's first access
                counting.start()
                counting.join(0.2)  # it waits for the scrape, unless it creates its own families
            return engine

    engine, served = FakeEngine(), Served()
    monitor = Monitor(served)  # type: ignore[arg-type]
    counting = threading.Thread(target=monitor.rejected)
    monitor.engine_exposition()
    counting.join(20)
    assert b'admission_rejections_total{engine="0",model_name="fake-chat",reason="queue_full"} 1.0' in (
        monitor.engine_exposition()
    )


def test_buckets_hold_vllms_bounds_and_finer_ones(address: str) -> None:
    scrape = Scrape(address)

    def bounds(name: str) -> list[float]:
        return [float(sample.labels["le"]) for sample in scrape.samples[f"vllm:{name}_bucket"]]

    ttft, itl = bounds("time_to_first_token_seconds"), bounds("inter_token_latency_seconds")
    assert {0.001, 0.06, 1.0, 7.5, 160.0, 2560.0} <= set(ttft) and {0.01, 0.075, 0.4, 80.0} <= set(itl)
    assert min(ttft) <= 0.0001 and min(itl) <= 0.0001
    assert bounds("request_prompt_tokens")[:6] == [1, 2, 5, 10, 20, 50]
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert bounds(name) == sorted(bounds(name))
    counts = [sample.value for sample in scrape.samples["vllm:time_to_first_token_seconds_bucket"]]
    assert counts == sorted(counts)


@pytest.mark.parametrize(("unfinished", "running"), [(0, 0), (2, 2), (5, 3)])
def test_gauges_between_two_steps(unfinished: int, running: int) -> None:
    """The last step's record is older than an end or a submission since."""

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"vllm:{name}", {"model_name": INFO.model, "engine": "0", **labels})

    metrics = Metrics(INFO)
    metrics.take(StepEvent(StepRecord(0, start_ns=0, end_ns=1, running=3, blocks_active=5, blocks_shared=2), []))
    metrics.look(unfinished)
    assert (value("num_requests_running"), value("num_requests_waiting")) == (running, unfinished - running)
    assert value("num_requests_waiting_by_reason", reason="capacity") == unfinished - running
    assert value("kv_cache_usage_perc") == (7 / (INFO.num_blocks - 1) if unfinished else 0)


def test_swapped_blocks_are_counted_in_bytes() -> None:
    metrics = Metrics(INFO)
    metrics.take(StepEvent(StepRecord(0, start_ns=0, end_ns=1, swapped_out=3, swapped_in=2), []))
    labels, block_bytes = {"model_name": INFO.model, "engine": "0"}, INFO.block_size * INFO.kv_bytes_per_token
    for direction, blocks in {"out": 3, "in": 2}.items():
        name = "roseplay:swapped_bytes_total"
        assert metrics.registry.get_sample_value(name, {**labels, "direction": direction}) == blocks * block_bytes > 0


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        ({"prompt_tokens": 512}, "prompts"), ({"preempted": [1]}, "preemption"), ({"device_ns": 1, "forward_ns": 1}, "host"),
        ({"copied": [3]}, "other"), ({}, "other"),
    ],
)  # fmt: skip
def test_a_late_token_counts_as_a_stall_of_its_cause(step: dict[str, Any], cause: str) -> None:
    metrics, ms, now = Metrics(INFO), 1_000_000, 0
    for gap in (*[10] * 10, 14, 40):
        now += gap * ms
        times = {"start_ns": now - gap * ms, "end_ns": now, "device_ns": gap * ms, "forward_ns": gap * ms}
        record = StepRecord(0, **{**times, "decode_tokens": 1, **(step if gap == 40 else {})})
        metrics.take(StepEvent(record, [TokenEvent(1, 7, now, gap * ms)]))
    labels = {"model_name": INFO.model, "engine": "0", "cause": cause}
    for figure, value in {"count": 1, "sum": 0.03}.items():
        name = f"roseplay:decode_stall_seconds_{figure}"
        assert metrics.registry.get_sample_value(name, labels) == pytest.approx(value)


def test_a_refusal_of_a_full_queue_is_counted(fresh: tuple[Engine, str]) -> None:
    engine, address = fresh
    engine.pause()
    body = {"model": "tiny-chat", "prompt": "Hi", "max_tokens": 1}
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(httpx.post, f"{address}/v1/completions", json=body, timeout=60) for _ in range(10)]
        wait_until(lambda: sum(one.done() for one in asked) >= 6)
        scrape = Scrape(address)
        assert scrape.value("admission_rejections_total", reason="queue_full") == 6
        assert (scrape.value("num_requests_running"), scrape.value("num_requests_waiting")) == (0, 4)
        engine.resume()
        statuses = sorted(one.result().status_code for one in asked)
    assert statuses == [200] * 4 + [429] * 6
    replies = Scrape(address).samples["http_requests_total"]
    counts = {reply.labels["status"]: reply.value for reply in replies if reply.labels["method"] == "POST"}
    assert counts == {"2xx": 4, "4xx": 6}
    took = [sample.value for sample in Scrape(address).samples["http_request_duration_seconds_sum"]]
    assert 0 < sum(took) < 600


def test_names_keep_their_colons_for_every_scraper(address: str) -> None:
    accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2"
    answer = httpx.get(f"{address}/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "\nvllm:generation_tokens_total{" in answer.text and "vllm_" not in answer.text


def test_the_telemetry_is_read_between_scrapes() -> None:
    """Its log is bounded."""
    engine = FakeEngine()
    monitor = Monitor(ServedEngine(engine))  # type: ignore[arg-type]
    with TestClient(app_of(engine, monitor=monitor)):
        engine.submit([1, 2, 3], SamplingParams(max_new_tokens=5))
        engine.step(5)
        generated = b'generation_tokens_total{engine="0",model_name="fake-chat"} 5.0'
        wait_until(lambda: generated in monitor.engine_exposition())  # which itself reads nothing


PROMETHEUS = shutil.which("prometheus")
CONFIG = """
global: {{scrape_interval: 500ms}}
scrape_configs:
  - job_name: vllm
    static_configs: [{{targets: ["{target}"]}}]
"""


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here: apt-get install prometheus")
def test_a_real_prometheus_answers_the_dashboards_queries(fresh: tuple[Engine, str], tmp_path: Path) -> None:
    engine, address = fresh
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(target=address.removeprefix("http://")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = {"config.file": tmp_path / "prometheus.yml", "storage.tsdb.path": tmp_path / "data"}
    flags["web.listen-address"] = f"127.0.0.1:{port}"
    command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in flags.items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _watch(engine, f"http://127.0.0.1:{port}", until=time.monotonic() + 60)
        finally:
            process.terminate()
            process.wait(20)


def _watch(engine: Engine, prometheus: str, until: float) -> None:
    """Generate some traffic over several scrapes, then query every metric as the dashboards do."""

    def query(expression: str) -> list[Any]:
        answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert answer["status"] == "success", (expression, answer)
        return list(answer["data"]["result"])

    scrapes = 0
    while scrapes < 8:
        assert time.monotonic() < until, "Prometheus did not scrape"
        engine.submit([1, 2, 3, 4], SamplingParams(max_new_tokens=8, ignore_eos=True)).result(60)
        try:
            found = query("count_over_time(up[1m])")
        except httpx.HTTPError:  # it is starting
            found = []
        scrapes = int(found[0]["value"][1]) if found else 0
        time.sleep(0.1)
    assert [one["value"][1] for one in query("up")] == ["1"], "the scrapes failed"
    rates = 'sum(rate({}{{job=~"vllm", model_name=~"tiny-chat"}}[1m]))'
    assert float(query(rates.format("vllm:generation_tokens_total"))[0]["value"][1]) > 0
    for metric in QUERIED:
        if metric.startswith(tuple(DOES_NOT_APPLY)) or not metric.startswith("vllm:") or metric.endswith("_info"):
            continue
        if metric.endswith("_bucket"):
            selected = re.sub(r"^sum\((.*)\)$", r"sum by (le) (\1)", rates.format(metric))
            value = query(f"histogram_quantile(0.95, {selected})")
        elif metric.endswith(("_total", "_sum", "_count")):
            value = query(rates.format(metric))
        else:
            value = query(f'{metric}{{model_name=~"tiny-chat", engine=~".+"}}')
        assert value, metric
    p95 = query("histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))")
    assert 0 < float(p95[0]["value"][1]) < 60
