"""``python -m roseplay``."""

import sys

from roseplay.cli import main

if __name__ == "__main__":
    sys.exit(main())
