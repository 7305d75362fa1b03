"""``roseplay lab``: run an experiment from the command line, without the page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roseplay.formats.text import number_text, range_text, ratio_text
from roseplay.lab import arms
from roseplay.lab.background import BackgroundJob
from roseplay.lab.flags import engine_config, experiment_body, parser
from roseplay.lab.lab import make_job, parse_any
from roseplay.lab.points import runs_text, verdict_text
from roseplay.lab.points_document import is_of_points, points_csv, rows_of
from roseplay.lab.results import html_report
from roseplay.lab.sentences import VERDICTS
from roseplay.lab.servers import Servers
from roseplay.lab.spec import ARMS, Experiment
from roseplay.own_models import choose_model
from roseplay.remote.address import server_addresses
from roseplay.traffic.figures import FIGURES
from roseplay.traffic.pace import Speed

_POLL_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one experiment. Returns 0 on success, 1 if a run failed, 2 for invalid arguments, 130 if interrupted."""
    options = parser().parse_args(argv)
    results: list[dict[str, Any]] = []
    try:
        body = experiment_body(options)
        asked = parse_any(body)
        if options.csv and isinstance(asked, Experiment):
            raise ValueError("--csv is for --sweep and --find: use --json")
        config = engine_config(options)
        for file in filter(None, (options.report, options.save)):
            if not Path(file).absolute().parent.is_dir():
                raise ValueError(f"{file!r} cannot be written: there is no such directory")

        def keep(document: dict[str, Any]) -> str:
            results.append({**document, "keep_cache": True} if options.keep_cache else document)
            return str(document["id"])

        addresses = server_addresses(vars(options))
        live = Servers.at(addresses) if addresses else arms.ClosedEngine.of(_model(options), config)
        asked = parse_any(body, Speed.of(live.info))
        job = make_job(asked, live, keep, run_limit_s=options.run_limit_s, keep_cache=options.keep_cache)
        _follow(job)
        if job.state != "done":
            _write_partly(results, options)
            return _refuse(job.error or "the experiment was stopped", 1)
        _write(results[0], options)
    except KeyboardInterrupt:
        _write_partly(results, options)
        return _refuse("interrupted", 130)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        return _refuse(str(error))
    return 0


def _model(options: argparse.Namespace) -> str:
    model, said = choose_model(options.model)
    if said is not None:
        print(f"roseplay lab: {said}", file=sys.stderr)
    return model


def _write_partly(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write what was measured of a sweep or a search before it ended early, if anything was."""
    if results and is_of_points(results[0]):
        _write(results[0], options)


def _follow(job: BackgroundJob) -> None:
    """Run a job to its end and report finished runs on standard error."""
    job.start()
    shown, ended = 0, False
    try:
        while not ended:
            ended = job.wait(_POLL_S)
            status = job.status()
            runs = status["progress"]
            of = f" of {len(runs)}" if status.get("kind") != "find" else ""  # a search ends when it has an answer
            for run in runs[shown:]:
                if run["state"] != "done":
                    break
                shown += 1
                in_round = f", round {run['repeat']}" if status.get("kind") == "sweep" else ""
                print(f"run {shown}{of}{in_round}, {run['arm']}: {run['seconds']:.1f} s", file=sys.stderr)
    except KeyboardInterrupt:
        job.stop()
        job.wait()
        raise


def _write(document: dict[str, Any], options: argparse.Namespace) -> None:
    if options.save is not None:
        Path(options.save).write_text(
            json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
    if options.json:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    elif options.csv:
        print(points_csv(document).decode(), end="")
    elif "roseplay_lab" not in document:
        print("\n".join(points_lines(document)))
    else:
        print("\n".join(summary_lines(document)))
    if options.report is not None:
        Path(options.report).write_text(html_report(document), encoding="utf-8")


def summary_lines(document: Mapping[str, Any]) -> list[str]:
    """Returns a result as text: what was compared, the three sentences, and a line for each figure with its range."""
    runs = "1 run" if document["repeats"] == 1 else f"medians of {document['repeats']} runs"
    lines = [
        f"{document['title']}: {document['model']} on {document['device']}, {document['dtype']}, {runs} an arm",
        *(f"  {arm}: {document['arms'][arm]['label']}" for arm in ARMS),
        "",
        *document["summary"]["sentences"],
        "",
        f"{'':<26}{'A':>10}{'':14}{'B':>10}{'':14}{'B / A':>8}  B is",
    ]
    for row in document["summary"]["metrics"]:
        name = ", ".join(filter(None, (row["title"], row["unit"])))
        a, b = (f"{number_text(row[arm]):>10} {range_text(*row[f'{arm}_range']):<13}" for arm in ("a", "b"))
        lines.append(f"{name:<26}{a}{b}{ratio_text(row['ratio']):>8}  {VERDICTS[row['verdict']]}")
    return lines


def points_lines(document: Mapping[str, Any]) -> list[str]:
    """Returns a sweep or a search as text: its sentences, and a line for each value with the figures' ranges."""
    summary = document["summary"]
    rows = rows_of(document)
    names = list(rows[0]["figures"])
    lines = [
        f"{document['title']}: {document['model']} on {document['device']}, {document['dtype']},"
        f" {runs_text(document['points' if 'roseplay_sweep' in document else 'tries'])} a value",
        "",
        *summary["sentences"],
        "",
        f"{document['setting']:<20}" + "".join(f"{FIGURES[name].title:<22}" for name in names) + "promise",
    ]
    for row in rows:
        cells = (
            f"{number_text(found['median'])} {range_text(*found['range'])}" if found["median"] is not None else "–"
            for found in (row["figures"][name] for name in names)
        )
        line = f"{number_text(row['value']):<20}" + "".join(f"{cell:<22}" for cell in cells)
        lines.append(line + verdict_text(row))
    return lines


def _refuse(message: str, code: int = 2) -> int:
    print(f"roseplay lab: {message}", file=sys.stderr)
    return code
