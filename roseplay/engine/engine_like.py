"""What every engine offers: the one in this process, another server, replicas on Ray, a recording.

An engine that cannot do everything says so in its ``capabilities``, with the reason, and raises ``ValueError`` with that
reason where it is asked all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from roseplay.clock import Clock
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.errors import EngineError
from roseplay.engine.health import Health
from roseplay.engine.live_streams import LiveStreams
from roseplay.engine.messages import BlockInfo
from roseplay.engine.stream import Listener, Stream
from roseplay.engine.telemetry import Telemetry

# Text, chat messages or token ids.
Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]


class HasTokenizer(Protocol):
    """The part of an engine that making and measuring prompts needs."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def info(self) -> EngineInfo: ...


class EngineLike(Protocol):
    """An engine as chats, traffic, experiments and the APIs use it. Thread-safe.

    Attributes:
        config: the settings that are fixed from its start to its end.
        tokenizer: of the model; None if prompts are tokenized elsewhere, or consist of token ids.
    """

    @property
    def config(self) -> EngineConfig: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def model(self) -> Any:
        """What a second engine of the same model is loaded from: a name, a path, or a model in memory."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def clock(self) -> Clock:
        """The clock of all times that it reports."""

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def capabilities(self) -> Capabilities: ...

    # -- requests

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_update: Listener | None = None,
        due_ns: int | None = None,
    ) -> Stream:
        """Enqueue a request and return its stream at once.

        Args:
            params: greedy and 128 tokens by default.
            on_update: called from another thread whenever something has arrived for the stream; must return quickly.
            due_ns: when its traffic wanted it to be submitted, for the stream's metrics.

        Raises:
            ValueError: the prompt is empty, malformed or can never fit.
            EngineBusyError: too many requests are already waiting.
            EngineError: the engine is closed or has failed.
        """

    def abort(self, request_id: int) -> bool:
        """End a request with ``abort``; returns ``False`` if it is unknown or has ended."""

    def abort_all(self) -> int:
        """End every live request; returns how many there were."""

    @property
    def room(self) -> int:
        """How many more requests may wait."""

    @property
    def num_unfinished(self) -> int:
        """How many requests have been submitted here and have not ended."""

    # -- settings

    @property
    def knobs(self) -> Knobs: ...

    def set_knobs(self, **changes: Any) -> Knobs:
        """Change knobs from the next step on; returns all of them. Raises ``ValueError`` that names what is wrong."""

    def clear_cache(self) -> None:
        """Drop all cached blocks that no request holds."""

    def pause(self) -> None:
        """Compute nothing from the next step on."""

    def resume(self) -> None:
        """End a ``pause``."""

    # -- state

    def inspect_block(self, block: int, timeout: float = 10.0) -> BlockInfo:
        """Returns what a KV block holds. Raises ``ValueError`` if there is no such block, ``TimeoutError``."""

    def free_memory(self, timeout: float = 10.0) -> FreeMemory:
        """Returns the free memory where the model runs. Raises ``TimeoutError``."""

    def health(self, timeout: float = 1.0) -> Health:
        """Returns whether it responds, within ``timeout`` seconds."""

    @property
    def overdue(self) -> str | None:
        """What is wrong with it, in one line, as far as is known without asking it; ``None`` while it is healthy."""

    @property
    def client_delay(self) -> str | None:
        """Why this process makes latencies longer, in one line; ``None`` while it does not."""

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""

    def close(self, timeout: float = ..., *, reason: str | None = None) -> None:
        """End all requests with ``abort``, or with ``reason`` as an error. Closing twice is allowed."""


class NotInspectable(ABC):
    """Refuses what needs the worker itself, of an engine whose worker runs elsewhere. ``capabilities`` has the reasons."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    def pause(self) -> None:
        self.capabilities.refuse("pause")

    def resume(self) -> None:
        self.capabilities.refuse("pause")

    def inspect_block(self, block: int, timeout: float = 10.0) -> BlockInfo:
        self.capabilities.refuse("inspect")


class EngineOfStreams(ABC):
    """An engine whose unfinished requests are streams that are fed here; ends with the ``with`` block."""

    _live: LiveStreams[Any]

    @abstractmethod
    def abort(self, request_id: int) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...

    def abort_all(self) -> int:
        return sum(self.abort(stream.request_id) for stream in self._live.live())

    @property
    def num_unfinished(self) -> int:
        """Number of requests that were submitted here and have not ended; another program may have more."""
        return self._live.num_live

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EngineElsewhere(EngineOfStreams, NotInspectable):
    """An engine whose requests another program computes."""

    _closed = False

    @property
    def alive(self) -> bool:
        """Whether requests are accepted; a program that cannot be reached may come back."""
        return not self._closed

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
