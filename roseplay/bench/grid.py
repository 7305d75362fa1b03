"""``roseplay bench grid``: what a decode step costs at every batch size and context of a grid.

One engine decodes them all, in turn and in an order of its own each time, so that a busy moment of the machine does not
lie on one corner. The cost should rise as the bytes do, without a cliff.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from pathlib import Path
from typing import Any

from roseplay.bench import flags
from roseplay.bench.bandwidth import read_bandwidth
from roseplay.bench.decode import DecodeSteps, blocks_for, decode_batch, figures
from roseplay.config import Knobs
from roseplay.traffic.environment import environment


def add_command(commands: Any) -> None:
    """Register with the parser of ``roseplay bench``."""
    parser = commands.add_parser(
        "grid", help="the cost of a decode step over batch size and context", description=__doc__.split("\n\n")[1]
    )
    group = parser.add_argument_group("grid")
    sizes = {"type": flags.list_of_integers, "metavar": "N,N,..."}
    group.add_argument("--batch-sizes", default="1,2,4,8,16,32,64", help="requests that decode together", **sizes)
    group.add_argument("--contexts", default="64,256,512,1024", help="tokens of each prompt", **sizes)
    group.add_argument("--max-new-tokens", type=flags.at_least(8), default=24, help="tokens each request decodes")
    group.add_argument("--html", type=flags.writable_file, metavar="FILE", help="draw the grid there (plotly)")
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser, keep_cache=False)
    parser.set_defaults(run=run, repeat_runs=3)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Decode, print the figures and return them; raises ``ValueError`` and ``BenchmarkError``."""
    cells = list(itertools.product(args.batch_sizes, args.contexts))
    if args.num_blocks is None:
        block_size = flags.engine_config(args).block_size
        most = max(args.contexts) + args.max_new_tokens
        args.num_blocks = blocks_for(max(args.batch_sizes), most, block_size)
    found: dict[tuple[int, int], list[DecodeSteps]] = {cell: [] for cell in cells}
    order = random.Random(args.seed)
    with flags.open_engine(args, Knobs(max_batch_size=max(args.batch_sizes), prefix_cache=False)) as engine:
        bandwidth = read_bandwidth(engine.info.device)
        for number in range(args.warmup_runs + args.repeat_runs):
            for cell in order.sample(cells, len(cells)):
                sizes = {"batch_size": cell[0], "context": cell[1], "max_new_tokens": args.max_new_tokens}
                steps = decode_batch(engine, **sizes, time_limit_s=args.time_limit_s)
                if number >= args.warmup_runs:
                    found[cell].append(steps)
        bandwidth = statistics.fmean((bandwidth, read_bandwidth(engine.info.device)))
        info = engine.info
    told = [figures(info, found[cell], *cell, args.max_new_tokens, bandwidth) for cell in cells]
    document = {
        "model": info.model,
        "dtype": info.dtype,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "cells": told,
        "environment": environment(threads=info.threads, device=info.device),
    }
    _print(document, args.batch_sizes, args.contexts)
    if args.html:
        draw(document, args.html)
    return document


def _print(document: dict[str, Any], batches: list[int], contexts: list[int]) -> None:
    by_cell = {(cell["batch"], cell["context"]): cell for cell in document["cells"]}
    print(f"=== decode grid: {document['model']}, {document['dtype']} ===")
    print("ms a step (share of the read bandwidth)")
    print("batch  " + "".join(f"{'context ' + str(context):>16}" for context in contexts))
    for batch in batches:
        cells = (by_cell[batch, context] for context in contexts)
        words = (f"{cell['step_ms']['p50']:.1f} ({cell['bandwidth_fraction']:.0%})" for cell in cells)
        print(f"{batch:<7}" + "".join(f"{word:>16}" for word in words))


def draw(document: dict[str, Any], file: Path) -> None:
    """A page with two charts: ms a step, and its share of the bandwidth, a line a context."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    colors = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
    marks = ("circle", "square", "diamond", "triangle-up", "x", "cross")
    titles = ("ms a step", "bytes of weights and KV over time, as a share of the read bandwidth")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.09)
    contexts = sorted({cell["context"] for cell in document["cells"]})
    for number, context in enumerate(contexts):
        cells = [cell for cell in document["cells"] if cell["context"] == context]
        style = {"color": colors[number % len(colors)]}
        for column, of in ((1, lambda c: c["step_ms"]["p50"]), (2, lambda c: c["bandwidth_fraction"])):
            figure.add_trace(
                go.Scatter(
                    x=[cell["batch"] for cell in cells], y=[of(cell) for cell in cells], name=f"context {context:,}",
                    mode="lines+markers", line=style, marker={**style, "symbol": marks[number % len(marks)], "size": 8},
                    showlegend=column == 1,
                ),
                row=1, col=column,
            )  # fmt: skip
    batches = sorted({cell["batch"] for cell in document["cells"]})
    figure.update_xaxes(type="log", tickvals=batches, ticktext=[str(batch) for batch in batches], title="requests")
    figure.update_yaxes(type="log", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%", row=1, col=2)
    title = f"{Path(document['model']).name}, {document['dtype']}: a decode step"
    figure.update_layout(template="plotly_white", title=title, width=1200, height=460, margin={"t": 90, "b": 50})
    figure.write_html(file, include_plotlyjs=True)
