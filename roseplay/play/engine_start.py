"""Making the engine of a page, and its playground, as the command line asks for."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.arguments import DEFAULT_MODEL
from roseplay.config import EngineConfig, Knobs
from roseplay.engine.http.address import ServerAddress
from roseplay.own_models import SMOLLM2, SMOLLM2_NAME
from roseplay.play.engine_host import EngineHost, Start
from roseplay.play.options import Options

if TYPE_CHECKING:  # a start imports it after the page
    from roseplay.play.playground import Playground

# With the embedded model a pool of the usual size would look empty. These blocks fill seven rows of the block map,
# and a large burst runs out of them. ``--num-blocks`` and ``--kv-cache-memory`` override it.
WATCHABLE_BLOCKS = 449
# Its matrices are too small for a second thread to help, and the browser needs a core. ``--threads`` overrides it.
EMBEDDED_THREADS = 1
_log = logging.getLogger(__name__)


def host_engine(options: Options, command: str) -> EngineHost:
    """Returns a host of the engine that the command line asks for, whose start has not begun."""

    def make(start: Start) -> Playground:
        engine = _attach(options.addresses[0]) if options.addresses else _load(start)
        start.page_is_made.wait()
        try:
            start.resources.enter_context(options.server.publishing(engine))
            return _playground(engine, options, start)
        except BaseException:
            start.resources.close()
            engine.close()
            raise

    knobs = options.knobs.to_dict()
    if options.addresses:
        return EngineHost(make, options.addresses[0].url, options.config, knobs, command)
    return EngineHost(make, options.model, options.config, knobs, command, name=_name(options.model))


def _name(model: str) -> str:
    """Returns a model's name for people; one that is not there is called as it was given."""
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else SMOLLM2_NAME if model == SMOLLM2 else model


def watchable(model: str, config: EngineConfig) -> EngineConfig:
    """Returns the settings of a model's engine, with those that suit a page where the user has chosen none."""
    if model == DEFAULT_MODEL:
        if config.num_blocks is None and config.kv_cache_memory is None:
            config = dataclasses.replace(config, num_blocks=WATCHABLE_BLOCKS)
        if config.threads is None:
            config = dataclasses.replace(config, threads=EMBEDDED_THREADS)
    return config


def _playground(engine: Any, options: Options, start: Start) -> Playground:
    from roseplay.play.playground import Playground

    record = None if options.record is None else record_name(options.record, start.number)
    try:
        return Playground(engine, record=record, servers=options.addresses[1:], after=start.after)
    except OSError as error:
        why = error.strerror or error
        if start.number == 1:
            raise OSError(f"the recording {record!r} cannot be written: {why}") from None
        _log.error("the recording %s cannot be written, and the run goes on without: %s", record, why)
        return Playground(engine, servers=options.addresses[1:], after=start.after)


def record_name(record: str, number: int) -> str:
    """Returns the name of the file of a run's ``number``-th engine, or of a later one if that is there.

    A recording has one engine: where another is loaded, it ends, and the run goes on in another file.
    """
    if number == 1:
        return record
    path = Path(record)
    names = (path.with_stem(f"{path.stem}-{count}") for count in range(number, number + 10_000))
    return str(next(name for name in names if not name.exists()))


def _load(start: Start) -> Any:
    from roseplay.engine.client import Engine

    return Engine(
        start.model,
        config=watchable(start.model, start.config),
        knobs=Knobs(**start.knobs),
        cancelled=start.cancelled,
        on_progress=start.status.take,
        import_after=start.page_is_made,
        ids=start.ids,
    )


def _attach(address: ServerAddress) -> Any:
    from roseplay.engine.http.engine import HttpEngine

    return HttpEngine(address.url, api_key=address.api_key, model=address.model)
