"""``roseplay bench scenario``: the old name of ``roseplay lab``, with its old flags; to be removed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

_NEW_NAMES = {"--repeat-runs": "--repeats", "--time-limit-s": "--run-limit-s", "--json": "--save"}


def main(argv: Sequence[str]) -> int:
    """Run the lab's experiment; returns its exit code."""
    from roseplay.lab.command import main as lab

    given = list(_translated(argv))
    if not any(word.startswith("--run-limit-s") for word in given):
        given += ["--run-limit-s", "600"]  # its default
    print(f"roseplay bench scenario is now: roseplay lab {' '.join(given)}", file=sys.stderr)
    return lab(given)


def _translated(argv: Sequence[str]) -> Iterator[str]:
    """Yields the flags under the lab's names, without ``--warmup-runs``: the lab warms its engines up itself."""
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--warmup-runs":
            yield _NEW_NAMES.get(flag, flag) + equals + value
        elif not equals:
            next(words, None)
