"""Errors that an engine raises."""


class EngineError(RuntimeError):
    """The engine can no longer serve requests; the message says what happened and what to do."""


class EngineStartError(ValueError):
    """The engine could not start: model not found or not supported, too little memory, …; a message of one line.

    Attributes:
        reason: the message without the model's name, where that is said beside it.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class EngineBusyError(RuntimeError):
    """Too many requests are waiting already (``max_waiting``); try again later."""
