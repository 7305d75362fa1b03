"""``make soak``: an hour of mixed, seeded traffic on the real page server, and whether its resource use stays flat.

Exit code 0 when memory, handles and threads stayed flat and all counts agree, 1 with a list of what failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from tests import chromium
from tests.suites.soak.run import Settings, soak


def main() -> int:
    args = _parser().parse_args()
    if not sys.platform.startswith("linux"):
        print("soak: memory, handles and threads are read from /proc, so this needs Linux", file=sys.stderr)
        return 2
    interrupted = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: interrupted.set())
    browser = (args.chromium or chromium.find()) if args.browser else None
    if args.browser and browser is None:
        print("soak: no Chromium found, so no real tab is open (see ROSEPLAY_CHROMIUM)", flush=True)
    settings = Settings(
        seconds=args.seconds, seed=args.seed, rate=args.rate, tabs=args.tabs, lab_every_s=args.lab_every_s,
        warm_up_s=args.warm_up_s, sample_every_s=args.sample_s, browser=browser,
    )  # fmt: skip
    try:
        document = soak(settings, interrupted, lambda line: print(line, flush=True))
    except RuntimeError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if document["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.soak", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seconds", type=_positive, default=3600.0, help="how long the traffic lasts")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random in the traffic")
    parser.add_argument("--rate", type=_positive, default=1.0, help="multiplies how often everything happens")
    parser.add_argument("--tabs", type=int, default=3, help="light clients that poll as browser tabs do")
    parser.add_argument("--lab-every-s", type=float, default=120.0, help="mean time between lab runs; 0: none")
    parser.add_argument("--warm-up-s", type=float, help="left out: a third of the run, at most 600")
    parser.add_argument("--sample-s", type=_positive, default=5.0, help="time between two samples")
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True, help="open a real tab too")
    parser.add_argument("--chromium", help="path of the browser; left out, one is looked for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and samples there")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
