"""A plan in words: a table, one sentence, and how far the figures can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roseplay.extras.simulation.evidence import SATURATED
from roseplay.extras.simulation.gpus import GPU
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.plan.limits import Limits
from roseplay.extras.simulation.plan.search import Tried
from roseplay.extras.simulation.published import published_of
from roseplay.formats.numbers import percent_text

_COLUMNS = ("GPUs", "max-num-seqs", "max-num-batched-tokens", "TTFT p95", "ITL p95", "tok/s", "running", "KV", "")
_SHOWN_POINTS = 4


def table(tried: Sequence[Tried], limits: Limits) -> Iterator[str]:
    rows = [_COLUMNS, *(_row(one, limits) for one in tried)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def _row(one: Tried, limits: Limits) -> tuple[str, ...]:
    figures = one.figures
    verdict = limits.fault(figures)
    if not verdict and not one.holds(limits):
        verdict = limits.fault(one.longer) if one.longer is not None else "unknown"
        verdict += f" if steps take {percent_text(100 * one.margin, 1)} longer"
    return (
        str(one.gpus),
        str(one.max_batch_size),
        str(one.step_max_tokens),
        _ms(figures.ttft_s[1]),
        _ms(figures.itl_s[1]),
        f"{figures.output_tokens_per_s:,.0f}",
        str(figures.busiest),
        percent_text(100 * figures.kv_use, 0),
        verdict or "holds",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def sentence(one: Tried, shape: ModelShape, gpu: GPU, limits: Limits, demand: str) -> str:
    """Returns what the best setting does, in one sentence; ``demand`` is what it serves."""
    where, margin = f"{one.gpus} x {gpu.title}", percent_text(100 * one.margin, 1)
    if one.holds(limits):
        return (
            f"Simulated: {where} holds {demand} of {shape.name} within {limits}, also if all steps take {margin} longer,"
            f" which is the error of the simulation: {_figures(one)}."
        )
    figures = f"{SATURATED} ({_figures(one)})" if one.figures.saturated else _figures(one)
    return (
        f"no setting that was tried holds {limits} for {demand} of {shape.name} with the error of the simulation, {margin},"
        f" as margin; the nearest is {where} with max-num-seqs {one.max_batch_size} and max-num-batched-tokens"
        f" {one.step_max_tokens}: {figures}"
    )


def _figures(one: Tried) -> str:
    both = [
        f"TTFT p95 {_ms(each.ttft_s[1])}, ITL p95 {_ms(each.itl_s[1])}" for each in (one.figures, one.longer) if each
    ]
    return f"{' (with it, '.join(both)}{')' * (len(both) - 1)}, {one.figures.output_tokens_per_s:,.0f} tokens/s"


def warnings(one: Tried, shape: ModelShape, gpu: GPU, left_out: Sequence[str]) -> Iterator[str]:
    """Yields warnings about hardware without measured points, models of a kind that was not compared with any, and why
    numbers of GPUs were left out."""
    if not one.evidence.validated:
        yield "Warning: mixtures of experts were not compared with measurements. The error is that of other models."
    if not one.evidence.calibrated_on:
        yield (
            f"Warning: no measured points of {gpu.title} with {shape.weights} weights are known. Figures published of such"
            " hardware were up to 3.6 times the simulated ones: measure yours with roseplay calibrate."
        )
    yield from (f"Left out: {reason}." for reason in left_out)


def trust(one: Tried, shape: ModelShape, gpu: GPU) -> Iterator[str]:
    """Yields how far the figures can be trusted, and published figures of the same deployment."""
    yield f"Steps and ITL: {one.evidence}."
    if shape.unmodelled:
        yield f"Not modelled: {shape.unmodelled}."
    yield f"KV cache: {one.num_blocks:,} blocks, estimated; the number in the log of a start is exact (--num-blocks)."
    points = published_of(gpu.name, shape.name, shape.weights, one.gpus)
    points = [point for point in points if point.measured in ("itl", "tpot")]
    for point in points[:: max(1, len(points) // _SHOWN_POINTS)][:_SHOWN_POINTS]:
        what = "ITL p50" if point.measured == "itl" else "TPOT"
        yield (
            f"Published: {point.engine}, {point.prompt} + {point.answer} tokens, {point.streams} streams: {what}"
            f" {_ms(point.seconds)} ({point.source})"
        )


def speed(tried: Sequence[Tried], took_s: float) -> str:
    """Returns how fast was simulated, in the seconds that it took."""
    steps, seconds = sum(one.steps for one in tried), sum(one.seconds for one in tried)
    rate = f"{seconds / took_s:,.0f} times real time, {steps / took_s:,.0f} steps/s"
    return f"{seconds:,.0f} s simulated in {took_s:.1f} s: {rate}."
