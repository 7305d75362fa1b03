"""Makes a runner and runs a worker's loop with it, in a thread or in a process; a failure becomes an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import UnsupportedKnobError
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.load_runner import load_model_runner
from roseplay.engine.messages import Event, Failed
from roseplay.engine.runner import RunnerFactory
from roseplay.engine.slow_motion import Inbox
from roseplay.engine.structured import CompilingInbox, grammars_of
from roseplay.engine.worker import Worker
from roseplay.formats.text import error_line

logger = logging.getLogger(__name__)


def run_worker(
    model: Any,
    config: EngineConfig,
    knobs: Knobs,
    inbox: Inbox,
    send: Callable[[Event], None],
    loaded: Callable[[], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    make_runner: RunnerFactory = load_model_runner,
    reports: bool = False,
) -> None:
    """Make the runner, then run the loop; sends ``Failed`` instead of raising, and closes the runner at the end.

    Args:
        loaded: called once the model is loaded, before the first step.
        reports: whether to send ``Progress`` events during the start.
    """
    try:
        runner = make_runner(model, config, Reporter(send if reports else None), clock)
        inbox = CompilingInbox(inbox, grammars_of(model, config, runner.info()).start)
        worker = Worker(runner, config, knobs, inbox, send, clock)
    except (EngineStartError, UnsupportedKnobError) as error:
        send(Failed(str(error), reason=getattr(error, "reason", None)))
        return
    except BrokenPipeError:  # the client is gone
        raise
    except BaseException as error:  # a panic in an extension is not an Exception
        logger.exception("the engine could not start")
        send(Failed(f"the engine could not start: {error_line(error)}"))
        return
    try:
        if loaded is not None:
            loaded()
        worker.run()
    except BaseException as error:
        logger.exception("the engine's loop ended")
        send(Failed(f"the engine's loop ended: {error_line(error)}"))
    finally:
        runner.close()
