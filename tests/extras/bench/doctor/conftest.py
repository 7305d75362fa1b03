"""As for the benchmarks: short measurements."""

from tests.extras.bench.conftest import short_runs

__all__ = ["short_runs"]
