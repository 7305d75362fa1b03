"""A pytest plugin (``-p tests.engine.no_kernels``) with which ``roseplay.kernels`` cannot be imported."""

import sys

sys.modules["roseplay.kernels"] = None  # type: ignore[assignment]
