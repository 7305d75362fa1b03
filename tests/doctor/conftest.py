"""As for the benchmarks: short measurements."""

from tests.bench.conftest import short_runs

__all__ = ["short_runs"]
