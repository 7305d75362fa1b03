"""Reads servers' load from ``/metrics``, where each kind uses its own names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from roseplay.engine.telemetry import Load, LoadEvent
from roseplay.formats.text import is_name

# The range of figures that recordings can hold; larger or negative ones are ignored.
_MOST, _MOST_TOKENS = 2**31 - 1, 1e12
_LARGEST_BLOCK, _MOST_BLOCKS = 2**16, 2**24
# Bounds on what is read: a server could send anything, and each replica is a row of the page.
MOST_LINE = 1 << 16  # characters
MOST_SAMPLES = 10_000
MOST_REPLICAS = 64
# Labels that distinguish several engines behind one address: vLLM's and ours, and SGLang's.
ENGINE_LABELS = ("engine", "dp_rank")
_NUMBER = re.compile("[1-9][0-9]{0,8}")
_SERIES = re.compile(r"([\w:]+)(?:\{(\w+)=(\w+)\})?")
# Each part of a line is matched where the last one ended, in linear time; prometheus_client's parser is quadratic.
_NAME = re.compile(r"([A-Za-z_:][\w:]*)(\{\s*)?")
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*')
_VALUE = re.compile(r"\s+(\S+)")

Labels = Mapping[str, str]
Samples = dict[str, list[tuple[Labels, float]]]


@dataclass(frozen=True, slots=True)
class LoadNames:
    """The names under which a kind of server reports its load."""

    prefix: str  # of its families
    dialect: str  # the kind of server, a key of ``DIALECTS``
    # Fields of ``Load``, each with the places to try in order until one has samples. A place is a family, or several to
    # be added up, and ``{label=value}`` selects some of its samples.
    figures: Mapping[str, tuple[str, ...]]
    # An info family, and its labels with the size of a block and the number of blocks.
    blocks: tuple[str, str, str] | None = None


LOAD_NAMES = (
    LoadNames(
        "vllm:",
        "vllm",
        {
            "running": ("vllm:num_requests_running",),
            "waiting": ("vllm:num_requests_waiting",),
            "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
            "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            "preemptions": ("vllm:num_preemptions_total",),
            "generation_tokens": ("vllm:generation_tokens_total",),
            "computed_tokens": ("vllm:prompt_tokens_by_source_total{source=local_compute}",),
            "external_tokens": ("vllm:prompt_tokens_by_source_total{source=external_kv_transfer}",),
            "steps": ("vllm:iteration_tokens_total_count",),
            "step_tokens": ("vllm:iteration_tokens_total_sum",),
            "first_tokens": ("vllm:time_to_first_token_seconds_count",),
            "ttft_s": ("vllm:time_to_first_token_seconds_sum",),
            "gaps": ("vllm:inter_token_latency_seconds_count",),
            "itl_s": ("vllm:inter_token_latency_seconds_sum",),
            "ended": ("vllm:request_queue_time_seconds_count",),
            "queue_s": ("vllm:request_queue_time_seconds_sum",),
            "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
            "decode_s": ("vllm:request_decode_time_seconds_sum",),
            "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
            "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
            "rejected": ("vllm:admission_rejections_total",),
            "deferred": ("vllm:num_requests_waiting_by_reason{reason=deferred}",),
            "awake": ("vllm:engine_sleep_state{sleep_state=awake}",),
        },
        ("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
    ),
    LoadNames(
        "sglang:",
        "sglang",
        {
            "running": ("sglang:num_running_reqs",),
            "waiting": ("sglang:num_queue_reqs",),
            "kv_usage": ("sglang:token_usage",),
            "prefix_queries": (
                "sglang:realtime_tokens_total{mode=prefill_compute} + sglang:realtime_tokens_total{mode=prefill_cache}",
                "sglang:prompt_tokens_total",
            ),
            "prefix_hits": ("sglang:realtime_tokens_total{mode=prefill_cache}", "sglang:cached_tokens_total"),
            "preemptions": ("sglang:num_retracted_requests_total",),
            "generation_tokens": ("sglang:realtime_tokens_total{mode=decode}", "sglang:generation_tokens_total"),
            "first_tokens": ("sglang:time_to_first_token_seconds_count",),
            "ttft_s": ("sglang:time_to_first_token_seconds_sum",),
            "gaps": ("sglang:inter_token_latency_seconds_count",),
            "itl_s": ("sglang:inter_token_latency_seconds_sum",),
        },
        ("sglang:cache_config_info", "page_size", "num_pages"),
    ),
    LoadNames(
        "llamacpp:",
        "llamacpp",
        {
            "running": ("llamacpp:requests_processing",),
            "waiting": ("llamacpp:requests_deferred",),
            "kv_usage": ("llamacpp:kv_cache_usage_ratio",),  # removed in newer versions
            # The first counts only computed tokens.
            "prefix_queries": ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
            "prefix_hits": ("llamacpp:prompt_tokens_cached_total",),
            "generation_tokens": ("llamacpp:tokens_predicted_total",),
        },
    ),
    LoadNames("tgi_", "tgi", {"running": ("tgi_batch_current_size",), "waiting": ("tgi_queue_size",)}),
    LoadNames(
        "trtllm_",
        "trtllm",
        {
            "running": ("trtllm_num_requests_running",),
            "waiting": ("trtllm_num_requests_waiting",),
            "kv_usage": ("trtllm_kv_cache_utilization",),
        },
    ),
)


def load_names(text: str) -> LoadNames | None:
    """Returns the names that a server uses; ``None`` for metrics of something else."""
    return next((names for names in LOAD_NAMES if any(_samples(text, names.prefix))), None)


def read_load(text: str, names: LoadNames, time_ns: int) -> LoadEvent:
    """Returns the load in the metrics: the total over all engines behind the server and, if there are several, each.

    The first ``MOST_REPLICAS`` engines are told apart, and the first ``MOST_SAMPLES`` samples of the load are read. What
    engines counted that have ended (the label ``ended`` of replicas) is in the total only.
    """
    families = {name for places in names.figures.values() for place in places for name, *_ in _SERIES.findall(place)}
    samples: Samples = {}
    engines: dict[str, Samples] = {}
    of_load = (sample for sample in _samples(text, names.prefix) if sample[0] in families)
    for name, labels, value in islice(of_load, MOST_SAMPLES):
        samples.setdefault(name, []).append((labels, value))
        engine = next((labels[label] for label in ENGINE_LABELS if is_name(labels.get(label))), None)
        if engine is not None and "ended" not in labels and (engine in engines or len(engines) < MOST_REPLICAS):
            engines.setdefault(engine, {}).setdefault(name, []).append((labels, value))
    replicas = {engine: _load(names, engines[engine]) for engine in sorted(engines)} if len(engines) > 1 else {}
    return LoadEvent(time_ns, _load(names, samples), replicas)


def _load(names: LoadNames, found: Samples) -> Load:
    load = Load()
    for figure, places in names.figures.items():
        values = next((values for place in places if (values := _values(place, found)) is not None), None)
        if values is None:
            continue
        value, most = sum(values), _MOST if figure in ("running", "waiting") else _MOST_TOKENS
        if figure == "kv_usage":
            value, most = value / len(values), 1.0
        elif not figure.endswith("_s"):  # not seconds
            value = round(value)
        if value <= most:
            setattr(load, figure, value)
    return load


def _values(place: str, found: Mapping[str, Iterable[tuple[Labels, float]]]) -> list[float] | None:
    """Returns the samples of a place; ``None`` unless each of its families has some."""
    values: list[float] = []
    for name, label, wanted in _SERIES.findall(place):
        chosen = [value for labels, value in found.get(name, ()) if not label or labels.get(label) == wanted]
        if not chosen:
            return None
        values += chosen
    return values


def read_blocks(text: str, names: LoadNames) -> tuple[int, int] | None:
    """Returns the size of a KV block in tokens and the number of blocks; ``None`` if the metrics lack them."""
    if names.blocks is None:
        return None
    family, *keys = names.blocks
    for name, labels, _ in _samples(text, family):
        size, count = (labels.get(label, "") for label in keys)
        if name != family or not _NUMBER.fullmatch(size) or not _NUMBER.fullmatch(count):
            continue
        if int(size) <= _LARGEST_BLOCK and int(count) < _MOST_BLOCKS:
            return int(size), int(count)
    return None


def _samples(text: str, prefix: str) -> Iterator[tuple[str, Labels, float]]:
    """Yields name, labels and value of each sample whose name begins with ``prefix``.

    Skips lines that are too long or cannot be read, and values that no server can mean: negative, infinite, NaN.
    """
    for line in text.split("\n"):
        if not line.startswith(prefix) or len(line) > MOST_LINE or (name := _NAME.match(line)) is None:
            continue
        labels: dict[str, str] = {}
        end = name.end()
        if name[2]:
            while (label := _LABEL.match(line, end)) is not None:
                labels[label[1]] = label[2]
                end = label.end()
            if line[end : end + 1] != "}":
                continue
            end += 1
        try:
            value = float(written[1]) if (written := _VALUE.match(line, end)) else -1.0
        except ValueError:
            continue
        if 0 <= value <= _MOST_TOKENS:
            yield name[1], labels, value
