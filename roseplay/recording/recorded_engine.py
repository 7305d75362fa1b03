"""The engine of a recording: its facts can be read, but it cannot run requests."""

from __future__ import annotations

from typing import Any, NoReturn

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import FreeMemory
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.engine_like import NotInspectable
from roseplay.engine.health import Health
from roseplay.engine.telemetry import Telemetry
from roseplay.recording.reader import Recording

NO_ENGINE = "this page replays a recording and has no engine: start it without --replay to send something"


class RecordedEngine(NotInspectable):
    """Provides the recorded facts; what would need a running engine raises ``ValueError``."""

    capabilities = Capabilities.without(dict.fromkeys(("knobs", "pause", "clear_cache", "inspect"), NO_ENGINE))
    clock = SYSTEM_CLOCK
    config = EngineConfig()
    knobs = Knobs()  # those of the recording are in its header; another version's may not be valid here
    tokenizer = None
    alive = True
    overdue: str | None = None
    client_delay: str | None = None
    room = num_unfinished = 0

    def __init__(self, recording: Recording) -> None:
        self.info = recording.info
        self.model = self.info.model
        self.telemetry = Telemetry(1)

    def submit(self, *_: Any, **options: Any) -> NoReturn:
        raise ValueError(NO_ENGINE)

    def abort(self, request_id: int) -> bool:
        """Returns ``False``: all requests have ended."""
        return False

    def abort_all(self) -> int:
        """Returns 0: all requests have ended."""
        return 0

    def set_knobs(self, **changes: Any) -> Knobs:
        self.capabilities.refuse("knobs")

    def clear_cache(self) -> None:
        self.capabilities.refuse("clear_cache")

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        raise ValueError(NO_ENGINE)

    def health(self, timeout: float = 1.0) -> Health:
        return Health(True, "this page replays a recording and has no engine")

    def close(self, timeout: float = 0.0, *, reason: str | None = None) -> None:
        """Nothing to close."""
