"""What the routes for programs serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from roseplay.engine.engine_like import EngineLike
from roseplay.serve.submissions import Submissions


class Served(Protocol):
    """An engine and what belongs to its server. Its attributes are asked for with each request, since the engine may still
    be starting: then they raise ``EngineError``."""

    @property
    def engine(self) -> EngineLike: ...

    @property
    def submissions(self) -> Submissions: ...

    @property
    def boot_id(self) -> str:
        """Changes with each engine."""

    def set_knobs(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change some knobs and return all; raises ``ValueError`` that names what is wrong."""
