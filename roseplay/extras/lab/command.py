"""``roseplay lab``: runs an experiment from the command line, without the page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from roseplay.arguments import exit_code
from roseplay.config import SIMULATED_GPUS
from roseplay.extras.lab.arms import ClosedEngine, OpenEngine
from roseplay.extras.lab.document import Result
from roseplay.extras.lab.flags import parser
from roseplay.extras.lab.from_flags import engine_config, experiment_body, with_arms
from roseplay.extras.lab.job import Job
from roseplay.extras.lab.measuring import RunError
from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.report import html_report, text_report
from roseplay.extras.lab.results import points_csv
from roseplay.extras.lab.servers import Servers
from roseplay.extras.servers.address import server_addresses
from roseplay.own_models import choose_model
from roseplay.traffic.pace import Speed

_POLL_S = 0.1


def main(argv: Sequence[str] | None = None, open_engine: OpenEngine | None = None) -> int:
    """Run one experiment; ``open_engine`` is that of ``Job``.

    Returns 0 on success, 1 if a run failed, 2 for invalid arguments, 130 if interrupted.
    """
    options = parser().parse_args(argv)
    return exit_code("roseplay lab", lambda: _run(options, open_engine), RunError)


def _run(options: argparse.Namespace, open_engine: OpenEngine | None) -> int:
    body = experiment_body(options)
    draft = parse_experiment(with_arms(body, options))
    if options.csv and draft.kind == "compare":
        raise ValueError("--csv is for --sweep and --find: use --json")
    config, addresses = engine_config(options), server_addresses(vars(options))
    simulated = any(arm.config.get("run_as", config.run_as) for arm in draft.arms.values())
    if options.cpu_time and (simulated or addresses):
        raise ValueError("--cpu-time is for engines on this machine's CPU: leave out --url and --run-as")
    for file in filter(None, (options.report, options.save)):
        if not Path(file).absolute().parent.is_dir():
            raise ValueError(f"{file!r} cannot be written: there is no such directory")
    results: list[Result] = []

    def keep(document: Result) -> str:
        results.append(document)
        return document["id"]

    live = Servers.at(addresses) if addresses else ClosedEngine.of(_model(options), config, draft.arms, open_engine)
    experiment = parse_experiment(with_arms(body, options, live.info), Speed.of(live.info), live.knobs)
    how = {"run_limit_s": options.run_limit_s, "keep_cache": options.keep_cache}
    job = Job(experiment, live, keep, open_engine, cpu_time=options.cpu_time, **how)
    try:
        _follow(job)
    finally:
        for document in results:  # complete results, even if the job failed
            _write(document, options)
    if job.state != "done":
        raise RunError(job.error or "the experiment was stopped")
    return 0


def _model(options: argparse.Namespace) -> str:
    model, note = choose_model(options.model, on_simulated_gpu=options.run_as in SIMULATED_GPUS)
    if note is not None:
        print(f"roseplay lab: {note}", file=sys.stderr)
    return model


def _follow(job: Job) -> None:
    """Run a job to its end, reporting finished runs on standard error."""
    job.start()
    shown, ended = 0, False
    try:
        while not ended:
            ended = job.wait(_POLL_S)
            runs, experiment = list(job.runs), job.experiment
            total = f" of {len(runs)}" if experiment.rounds else ""
            for run in runs[shown:]:
                if run.state != "done":
                    break
                shown += 1
                in_round = f", round {run.repeat}" if experiment.kind == "sweep" else ""
                print(f"run {shown}{total}{in_round}, {run.label}: {run.elapsed:.1f} s", file=sys.stderr)
    except KeyboardInterrupt:
        job.stop()
        job.wait()
        raise


def _write(document: Result, options: argparse.Namespace) -> None:
    if options.save is not None:
        Path(options.save).write_text(
            json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
    if options.json:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    elif options.csv and document["kind"] != "compare":
        print(points_csv(document).decode(), end="")
    else:
        print("\n".join(text_report(document)))
    if options.report is not None:
        Path(options.report).write_text(html_report(document), encoding="utf-8")
