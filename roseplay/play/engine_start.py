"""Makes a page's engine and playground according to the command line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.config import Knobs
from roseplay.core.info import UnsupportedKnobError
from roseplay.engine.engine_like import EngineLike
from roseplay.own_models import called
from roseplay.play.engine_host import EngineHost, Start
from roseplay.play.options import Options
from roseplay.settings import settings_of

if TYPE_CHECKING:  # a start imports it after the page
    from roseplay.play.playground import Playground

_log = logging.getLogger(__name__)


def host_engine(options: Options, command: str) -> EngineHost:
    """Returns a host for the engine that the command line asks for, whose start has not begun."""

    def make(start: Start) -> Playground:
        elsewhere = options.elsewhere
        engine = elsewhere.open(start.status.wait_for, start.cancelled) if elsewhere else _load(start)
        try:
            absent = _carry_knobs(engine, start.knobs) if start.carried else {}
            start.page_is_made.wait()
            playground = _playground(engine, options, start)
            if absent:
                values = ", ".join(f"{settings_of(Knobs)[name].label} {value}" for name, value in absent.items())
                playground.notice = (
                    f"{start.name} does not support these settings, which have their defaults now: {values}."
                )
            return playground
        except BaseException:
            engine.close()
            raise

    model, name = (options.elsewhere.name, None) if options.elsewhere else (options.model, called(options.model))
    first = model, options.config, options.knobs.to_dict(), command
    return EngineHost(make, *first, name=name, told=options.is_private)


def _playground(engine: EngineLike, options: Options, start: Start) -> Playground:
    from roseplay.play.playground import Playground

    record = None if options.record is None else record_name(options.record, start.number)
    try:
        return Playground(engine, record=record, after=start.after)
    except OSError as error:
        why = error.strerror or error
        if start.number == 1:
            raise OSError(f"the recording {record!r} cannot be written: {why}") from None
        _log.error("the recording %s cannot be written; the run continues without it: %s", record, why)
        return Playground(engine, after=start.after)


def record_name(record: str, number: int) -> str:
    """Returns the file name for recording a run's ``number``-th engine, with a higher number if that file exists.

    A recording has one engine: when another is loaded, it ends, and the run continues in another file.
    """
    if number == 1:
        return record
    path = Path(record)
    names = (path.with_stem(f"{path.stem}-{count}") for count in range(number, number + 10_000))
    return str(next(name for name in names if not name.exists()))


def _carry_knobs(engine: EngineLike, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Set the knobs of a previous engine; returns those that this engine cannot have."""
    absent = {}
    for name, value in knobs.items():
        try:
            engine.set_knobs(**{name: value})
        except UnsupportedKnobError:
            absent[name] = value
    return absent


def _load(start: Start) -> EngineLike:
    from roseplay.engine.client import Engine

    return Engine(
        start.model,
        config=start.config,
        knobs=Knobs() if start.carried else Knobs(**start.knobs),
        cancelled=start.cancelled,
        on_progress=start.status.take,
        import_after=start.page_is_made,
        ids=start.ids,
    )
