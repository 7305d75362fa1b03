"""The names by which clients may ask for the model."""

from __future__ import annotations

from collections.abc import Sequence

from roseplay.engine.engine_like import EngineLike
from roseplay.own_models import selecting
from roseplay.serve.errors import ApiError


class ModelNames:
    """The names that a server's model answers to, whichever model that is.

    Args:
        served: the names given with ``--served-model-name``, of which the first is the label of metrics. Without any it is
            the model's own name.
    """

    def __init__(self, served: Sequence[str] = ()) -> None:
        self._served = tuple(served)

    def listed(self, engine: EngineLike) -> tuple[str, ...]:
        """Returns the names that clients see."""
        return self._served or (engine.info.model,)

    def check(self, engine: EngineLike, name: str | None) -> str:
        """Returns a name, by default the first one. Raises ``ApiError`` unless it is listed, or is one with which the server
        could have been started.
        """
        listed = self.listed(engine)
        if name not in (None, *listed, engine.info.model) and name not in selecting(engine.model):
            use = " or ".join(map(repr, listed))
            raise ApiError(404, f"there is no model {name!r} here: use {use}", param="model", code="model_not_found")
        return listed[0] if name is None else name
