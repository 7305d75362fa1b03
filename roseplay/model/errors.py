"""The error for models that cannot be served. Imports nothing: processes that only pass it on need neither torch nor transformers."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """The model was not found, or it is refused; the message is one line and says what to do.

    Attributes:
        untried: it is refused because it could not be tried, not because its family is known to fail.
    """

    untried = False


def refuse(name: str, why: str, *, untried: bool = False) -> UnsupportedModelError:
    """The error for a model that cannot be served, to be raised."""
    error = UnsupportedModelError(f"{name} cannot be served: {' '.join(why.split())}")
    error.untried = untried
    return error
