"""Errors that an engine raises."""


class EngineError(RuntimeError):
    """The engine can no longer serve requests; the message says what happened and what to do."""


class EngineStartError(ValueError):
    """The engine could not start: model not found or not supported, too little memory, …; a message of one line."""


class EngineBusyError(RuntimeError):
    """Too many requests are waiting already (``max_waiting``); try again later."""
