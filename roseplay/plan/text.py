"""A plan in words: a table, one sentence, the flags of vLLM and SGLang, and how far the figures can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roseplay.formats.numbers import percent_text
from roseplay.plan.search import Tried
from roseplay.plan.slo import SLO
from roseplay.sim.evidence import SATURATED, TTFT_UNDER_LOAD, published_like
from roseplay.sim.gpus import GPU
from roseplay.sim.model_shape import ModelShape

_COLUMNS = ("GPUs", "max-num-seqs", "max-num-batched-tokens", "TTFT p95", "ITL p95", "tok/s", "running", "KV", "")
_SHOWN_POINTS = 4


def hardware(gpu: GPU, gpus: int) -> str:
    return f"{gpus} x {gpu.title}"


def table(tried: Sequence[Tried], slo: SLO) -> Iterator[str]:
    """Yields the lines of the table."""
    rows = [_COLUMNS, *(_row(one, slo) for one in tried)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def _row(one: Tried, slo: SLO) -> tuple[str, ...]:
    figures = one.figures
    if figures.saturated:
        verdict = SATURATED
    elif figures.refused:
        verdict = f"{figures.refused} requests do not fit"
    else:
        missed = slo.missed(figures)
        verdict = f"misses {' and '.join(missed)}" if missed else "holds"
    return (
        str(one.gpus),
        str(one.max_batch_size),
        str(one.step_max_tokens),
        _ms(figures.ttft_s[1]),
        _ms(figures.itl_s[1]),
        f"{figures.output_tokens_per_s:,.0f}",
        str(figures.busiest),
        percent_text(100 * figures.kv_use, 0),
        verdict,
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def sentence(one: Tried, shape: ModelShape, gpu: GPU, slo: SLO, rate: float) -> str:
    """Returns what the best setting does, in one sentence."""
    figures = one.figures
    got = f"TTFT p95 {_ms(figures.ttft_s[1])}, ITL p95 {_ms(figures.itl_s[1])}, {figures.output_tokens_per_s:,.0f} tokens/s"
    where = hardware(gpu, one.gpus)
    if one.holds(slo):
        return f"Simulated: {where} holds {rate:.3g} requests/s of {shape.name} within {slo}: {got}."
    found = f"{SATURATED} ({got})" if figures.saturated else got
    return (
        f"no setting that was tried holds {slo} at {rate:.3g} requests/s of {shape.name}; the nearest is {where} with"
        f" max-num-seqs {one.max_batch_size} and max-num-batched-tokens {one.step_max_tokens}: {found}"
    )


def flags(one: Tried, model: str, max_model_len: int) -> Iterator[str]:
    """Yields the commands that start vLLM and SGLang with the setting."""
    yield (
        f"vLLM:   vllm serve {model} --tensor-parallel-size {one.gpus} --max-num-seqs {one.max_batch_size}"
        f" --max-num-batched-tokens {one.step_max_tokens} --max-model-len {max_model_len}"
    )
    yield (
        f"SGLang: python -m sglang.launch_server --model-path {model} --tp-size {one.gpus} --max-running-requests"
        f" {one.max_batch_size} --chunked-prefill-size {one.step_max_tokens} --context-length {max_model_len}"
    )


def trust(one: Tried, shape: ModelShape, gpu: GPU) -> Iterator[str]:
    """Yields how far the figures can be trusted, and published figures of the same deployment."""
    yield f"Steps and ITL: {one.evidence}. {TTFT_UNDER_LOAD}."
    if shape.unmodelled:
        yield f"Not modelled: {shape.unmodelled}."
    yield f"KV cache: {one.num_blocks:,} blocks, estimated; the number in the log of a start is exact (--num-blocks)."
    points = published_like(shape, gpu, one.gpus)
    for point in points[:: max(1, len(points) // _SHOWN_POINTS)][:_SHOWN_POINTS]:
        what = "ITL p50" if point.measured == "itl" else "TPOT"
        yield (
            f"Published: {point.engine}, {point.prompt} + {point.answer} tokens, {point.streams} streams: {what}"
            f" {_ms(point.seconds)} ({point.source.partition(',')[0]})"
        )
