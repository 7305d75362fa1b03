"""``roseplay``, sent SIGTERM from a finaliser while it imports the module named by the first argument.

Python drops exceptions raised in a finaliser, including ``KeyboardInterrupt``.
"""

import signal
import sys

from roseplay.cli import main


class Finalised:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


class Finder:
    def __init__(self, awaited: str) -> None:
        self.awaited = awaited

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.awaited:
            self.awaited = ""
            Finalised()


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder(sys.argv.pop(1)))  # type: ignore[arg-type]
    sys.exit(main())
