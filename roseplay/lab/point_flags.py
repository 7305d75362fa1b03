"""The flags of ``roseplay lab`` for sweeps and searches."""

from __future__ import annotations

import argparse
from typing import Any

from roseplay.arguments import Parser

SETTINGS = {
    "rate": "rate_per_s",
    "prefill-budget": "prefill_max_tokens",
    "batch": "max_batch_size",
}
_OF_SWEEP, _OF_FIND = ("points", "seconds"), ("itl_p99", "ttft_p95")


def add_point_flags(lab: Parser) -> None:
    """Add the flags."""
    group = lab.add_argument_group("one setting at many values, instead of A and B; other settings are those of A")
    group.add_argument("--sweep", choices=SETTINGS, help="measure values from --from to --to, in --repeats rounds")
    group.add_argument(
        "--find",
        choices=[name for name in SETTINGS if name != "rate"],
        help="search for the smallest prefill budget, or the largest batch, that keeps --itl-p99 and --ttft-p95",
    )
    group.add_argument("--from", dest="first", type=float, metavar="X", help="first value")
    group.add_argument("--to", dest="last", type=float, metavar="X", help="last value")
    group.add_argument("--points", type=int, metavar="N", help="values of a sweep (default: 8)")
    group.add_argument("--seconds", type=float, metavar="S", help="how long requests arrive at each value of a sweep")
    group.add_argument("--itl-p99", type=float, metavar="MS", help="the most ITL p99 of a search")
    group.add_argument("--ttft-p95", type=float, metavar="MS", help="the most TTFT p95 of a search")


def point_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Returns ``sweep`` or ``find`` as the lab reads it, if asked for; raises ``ValueError`` for flags that do not fit."""
    asked = [name for name in ("sweep", "find") if getattr(options, name) is not None]
    if len(asked) == 2:
        raise ValueError("use either --sweep or --find")
    kind = asked[0] if asked else None
    for names, fits in ((("first", "last"), asked), (_OF_SWEEP, kind == "sweep"), (_OF_FIND, kind == "find")):
        given = [name for name in names if getattr(options, name) is not None]
        if given and not fits:
            flag = {"first": "from", "last": "to"}.get(given[0], given[0].replace("_", "-"))
            where = "--find" if names is _OF_FIND else "--sweep" if names is _OF_SWEEP else "--sweep or --find"
            raise ValueError(f"--{flag} is for {where}")
    if kind is None:
        return {}
    if options.b:
        raise ValueError(f"--b is for a comparison of A and B: leave it out with --{kind}")
    fields = {"setting": SETTINGS[getattr(options, kind)], "from": options.first, "to": options.last}
    if kind == "sweep":
        return {"sweep": {**fields, "points": options.points, "seconds": options.seconds}}
    return {"find": {**fields, "itl_p99_ms": options.itl_p99, "ttft_p95_ms": options.ttft_p95}}
