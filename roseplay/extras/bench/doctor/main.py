"""The command: examines this machine and prints the findings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roseplay.arguments import Parser, add_field_flags, add_model_flag, exit_code, given_fields
from roseplay.config import EngineConfig
from roseplay.own_models import choose_model

if TYPE_CHECKING:
    from roseplay.extras.bench.doctor.report import Findings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the doctor; returns 1 if answers on this machine are wrong, 2 if the flags or the model are, otherwise 0."""
    args = _parser().parse_args(argv)
    args.model, note = choose_model(args.model)
    if note:
        print(f"roseplay doctor: {note}", file=sys.stderr)
    return exit_code("roseplay doctor", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from roseplay.extras.bench.doctor.answers import BLOCKS

    settings = given_fields(EngineConfig, vars(args))
    pool = {} if "kv_cache_memory" in settings else {"num_blocks": BLOCKS}
    findings = _examine(args.model, EngineConfig(**{**pool, **settings, "worker": "thread"}))
    print(json.dumps(findings.document(), indent=2) if args.json else findings.text())
    return 0 if findings.ok else 1


def _parser() -> Parser:
    parser = Parser(
        prog="roseplay doctor",
        description="Show what this machine has, how the engine computes a model on it and why, whether its answers "
        "match those of plain torch, and what is missing. Takes about half a minute and needs no network.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_model_flag(parser)
    add_field_flags(parser.add_argument_group("engine"), EngineConfig, leave_out=("worker",))
    return parser


def _examine(model: str, config: EngineConfig) -> Findings:
    from roseplay.engine.client import Engine
    from roseplay.extras.bench.doctor import machine
    from roseplay.extras.bench.doctor.answers import TOLERANCES, check
    from roseplay.extras.bench.doctor.report import Findings
    from roseplay.model.huge_pages import page_bytes

    with Engine(model, config=config) as engine:
        info = engine.info
    devices = machine.devices()
    checks = [check(device.device, dtype) for device in devices for dtype in TOLERANCES if dtype in device.matmul_flops]
    gpu = machine.missing_gpu()
    missing = [*info.slow, *([gpu] if gpu else [])]
    return Findings(machine.packages(), machine.features(), page_bytes(), devices, info, checks, missing)
