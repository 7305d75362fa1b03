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
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.soak", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long the traffic lasts")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random in the traffic")
    parser.add_argument("--rate", type=float, default=1.0, help="multiplies how often everything happens")
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True, help="open a real tab too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and samples there")
    args = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("memory, handles and threads are read from /proc, so this needs Linux")
    if args.seconds <= 0 or args.rate <= 0:
        parser.error("--seconds and --rate are above 0")
    interrupted = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: interrupted.set())
    browser = chromium.find() if args.browser else None
    if args.browser and browser is None:
        print("soak: no Chromium found, so no real tab is open (see ROSEPLAY_CHROMIUM)", flush=True)
    settings = Settings(seconds=args.seconds, seed=args.seed, rate=args.rate, browser=browser)
    try:
        document = soak(settings, interrupted, lambda line: print(line, flush=True))
    except RuntimeError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if document["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
