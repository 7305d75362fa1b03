"""``roseplay bench grid``: the cost of a decode step by batch size and context.

One engine decodes all combinations in turn. The cost should rise with the bytes, without sudden jumps.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

from roseplay.arguments import list_of_integers
from roseplay.bench import flags
from roseplay.bench.decode import measure
from roseplay.traffic.environment import environment


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("grid")
    sizes = {"type": list_of_integers, "metavar": "N,N,..."}
    flags.add(group, "--batch-sizes", "1,2,4,8,16,32,64", "requests that decode together", **sizes)
    flags.add(group, "--contexts", "64,256,512,1024", "tokens in each prompt", **sizes)
    flags.add(group, "--max-new-tokens", 24, "tokens each request decodes", type=flags.at_least(8))
    flags.add(group, "--html", None, "draw the grid in this HTML file", type=flags.writable_file, metavar="FILE")
    flags.add_engine_flags(parser)
    flags.add_run_flags(parser, repeat_runs=3)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Decode, print the figures and return them; raises ``ValueError`` and ``BenchmarkError``."""
    info, cells = measure(args, list(itertools.product(args.batch_sizes, args.contexts)))
    document = {
        "model": info.model,
        "dtype": info.dtype,
        "read_bandwidth_gb_s": cells[0]["read_bandwidth_gb_s"],
        "cells": cells,
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
    """Write a page with two charts, of ms a step and the share of the bandwidth, with a line for each context."""
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
