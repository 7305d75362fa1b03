"""The error for models that cannot be served. Imports nothing: processes that only pass it on need no torch."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """The model was not found or cannot be served; the message is one line and says what to do.

    Attributes:
        reason: the message without the model's name or path, where that is said beside it.
        untried: the model is refused only because it could not be probed, not because its family is known to fail.
    """

    def __init__(self, message: str, *, reason: str | None = None, untried: bool = False) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.untried = untried


def reason_of(error: OSError | ValueError) -> str:
    """Returns why a model cannot be read, without its name or path."""
    if isinstance(error, UnsupportedModelError):
        return error.reason
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def refuse(name: str, why: str, *, untried: bool = False) -> UnsupportedModelError:
    """Returns the error to raise for a model that cannot be served."""
    reason = " ".join(why.split())
    return UnsupportedModelError(f"{name} cannot be served: {reason}", reason=reason, untried=untried)
