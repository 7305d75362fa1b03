"""``roseplay bench grid``: the cost of a decode step by batch size and context.

One engine decodes all combinations in turn. The cost should rise with the bytes, without sudden jumps.
"""

from __future__ import annotations

import argparse
import itertools
from html import escape
from pathlib import Path
from typing import Any

from roseplay.arguments import list_of_integers, within
from roseplay.extras.bench import flags
from roseplay.extras.bench.decode import measure
from roseplay.formats.report_page import COLOURS, charts, figure, heading, report_page
from roseplay.traffic.environment import environment


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("grid")
    sizes = {"type": list_of_integers, "metavar": "N,N,..."}
    flags.add(group, "--batch-sizes", "1,2,4,8,16,32,64", "requests that decode together", **sizes)
    flags.add(group, "--contexts", "64,256,512,1024", "tokens in each prompt", **sizes)
    flags.add(group, "--max-new-tokens", 24, "tokens each request decodes", type=within(8, flags.MOST))
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
    title = f"{Path(document['model']).name}, {document['dtype']}: a decode step"
    batches, contexts = (sorted({cell[of] for cell in document["cells"]}) for of in ("batch", "context"))
    share = "bytes of weights and KV over time, as a share of the read bandwidth"
    drawn = {"ms a step": lambda cell: cell["step_ms"]["p50"], share: lambda cell: cell["bandwidth_fraction"]}
    figures = []
    for of in drawn.values():
        chart = figure("requests", "")
        chart.update_xaxes(type="log", tickvals=batches, ticktext=[str(batch) for batch in batches])
        for number, context in enumerate(contexts):
            cells = [cell for cell in document["cells"] if cell["context"] == context]
            style = {"color": COLOURS[f"c{number % 8}"]}
            x, y = [cell["batch"] for cell in cells], [of(cell) for cell in cells]
            chart.add_scatter(x=x, y=y, name=f"context {context:,}", mode="lines+markers", line=style)
        figures.append(chart)
    figures[0].update_yaxes(type="log", rangemode=None)
    figures[1].update_yaxes(tickformat=".0%")
    parts = [part for name, chart in zip(drawn, charts(figures), strict=True) for part in (heading(name), chart)]
    file.write_text(report_page(title, [f"<h1>{escape(title)}</h1>", *parts]), encoding="utf-8")
