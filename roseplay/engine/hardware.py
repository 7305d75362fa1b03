"""Hardware that is not here, as which an engine runs (``EngineConfig.run_as``): what an extension offers for it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from roseplay.clock import Clock
from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.runner import Runner
from roseplay.extensions import offered


class MeasuredLoad(NamedTuple):
    """A published measurement of ``clients`` that each sent one request after the other; tokens, and a mean TTFT."""

    server: str
    prompt: int
    answer: int
    clients: int
    ttft_s: float
    saturated: bool


class Hardware(Protocol):
    """Makes an engine's parts where it runs as hardware that is not here."""

    def load_runner(self, model: Any, config: EngineConfig, reporter: Reporter, clock: Clock) -> Runner:
        """Returns the runner of ``config.run_as``. Raises ``EngineStartError``, one line."""

    def tokenizer(self, model: Any, config: EngineConfig) -> Any:
        """Returns the model's own tokenizer or, where only its config is at hand, that of the embedded model."""

    def origins(self, model: Any, config: EngineConfig, num_blocks: int) -> dict[str, object]:
        """Returns where every number of the engine comes from, for the page. Raises ``ValueError``."""

    def measured_loads(self, info: EngineInfo, config: EngineConfig) -> list[MeasuredLoad]:
        """Returns the published measurements of the engine's model on its hardware."""


def hardware() -> Hardware:
    """Returns what runs engines as hardware that is not here; raises ``EngineStartError`` if no extension does."""
    for each in offered("hardware"):
        return each
    raise EngineStartError("no extension that simulates hardware is installed: leave out run_as")
