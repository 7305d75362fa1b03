"""As for tests of the model: one thread and short warm-ups."""

from tests.model.conftest import one_thread, short_warm_up

__all__ = ["one_thread", "short_warm_up"]
