"""Errors that an engine raises."""


class EngineError(RuntimeError):
    """The engine cannot serve requests any more; the message says what happened and what to do."""


class EngineStartError(ValueError):
    """The engine could not start: model not found or not supported, too little memory …; one clear line."""


class EngineBusyError(RuntimeError):
    """Too many requests wait already (``max_waiting``); try again later."""
