"""The interface to an engine that the API's routes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from roseplay.engine.engine_like import EngineLike
from roseplay.serve.submissions import Submissions


class Served(Protocol):
    """An engine and the state of its server. Attributes are read at each request: they raise ``EngineError`` while the
    engine is starting."""

    @property
    def engine(self) -> EngineLike: ...

    @property
    def submissions(self) -> Submissions: ...

    @property
    def boot_id(self) -> str:
        """An ID that changes with each engine."""

    def set_knobs(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change some knobs and return all of them; raises ``ValueError``, which names what is wrong."""
