"""The error for models that cannot be served. Imports nothing: processes that only pass it on need no torch."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """The model was not found or cannot be served; the message is one line and says what to do.

    Attributes:
        untried: the model is refused only because it could not be probed, not because its family is known to fail.
    """

    untried = False


def refuse(name: str, why: str, *, untried: bool = False) -> UnsupportedModelError:
    """Returns the error to raise for a model that cannot be served."""
    error = UnsupportedModelError(f"{name} cannot be served: {' '.join(why.split())}")
    error.untried = untried
    return error
