"""Checks the scheduler with millions of random operations: ``make fuzz``, ``make fuzz ARGS="--seed 7"``."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import islice

from tests.core.driver import run

RUN_LENGTH = 2_500
REPORT_EVERY_S = 10.0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--operations", type=int, default=5_000_000, help="how many to check (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other operations for another number (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--run-length", type=int, default=RUN_LENGTH, help="operations of a run (default: %(default)s)")
    parser.add_argument("--replay", type=int, metavar="RUN", help="do one run again, which has failed")
    return parser.parse_args(argv)


def _checked(seed: int, operations: int) -> int | str:
    """How many operations a run has checked, or the traceback of its failure."""
    try:
        return run(seed, operations).operations
    except Exception:
        return traceback.format_exc()


def _counts(seeds: Iterator[int], run_length: int, jobs: int) -> Iterator[int | str]:
    """The results of the runs as they finish, with only a few more runs queued than there are processes."""
    with ProcessPoolExecutor(jobs) as pool:
        pending: set[Future[int | str]] = {pool.submit(_checked, seed, run_length) for seed in islice(seeds, 4 * jobs)}
        while pending:
            done = next(as_completed(pending))
            pending.remove(done)
            pending |= {pool.submit(_checked, seed, run_length) for seed in islice(seeds, 1)}
            yield done.result()


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    if args.replay is not None:
        seeds, jobs = iter([args.replay]), 1
    else:
        first = args.seed * 10_000_000
        seeds, jobs = iter(range(first, first + -(-args.operations // args.run_length))), max(1, args.jobs)
    start = reported = time.monotonic()
    operations = 0
    for count in _counts(seeds, args.run_length, jobs):
        now = time.monotonic()
        if isinstance(count, str):
            print(f"{count}\nfailed; {operations:,} operations checked before", file=sys.stderr)
            return 1
        operations += count
        if now - reported > REPORT_EVERY_S:
            reported = now
            print(f"{operations:,} operations checked, {operations / (now - start):,.0f} a second", flush=True)
    seconds = time.monotonic() - start
    print(f"{operations:,} operations checked in {seconds:.0f} s, {operations / seconds:,.0f} a second; all hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
