"""Experiments on other servers: no engines are started; each arm names the server for its runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

from roseplay.config import Knobs
from roseplay.engine.errors import EngineError
from roseplay.extras.lab.experiment import Arm
from roseplay.extras.lab.types import ArmName
from roseplay.extras.servers.address import ServerAddress
from roseplay.extras.servers.engine import CLOSE_TIMEOUT_S, HttpEngine

logger = logging.getLogger(__name__)


class MeasuredServer(HttpEngine):
    """A server that is being measured; its settings are restored afterwards, or never changed (``keeps_settings``)."""

    lease_s = 15.0  # so that a vLLM gets its settings back even if this process is killed

    def __init__(self, address: ServerAddress, *, keeps_settings: bool) -> None:
        super().__init__(address.url, api_key=address.api_key, model=address.model, steps=address.steps)
        self._found = self.knobs if self.capabilities.knobs and not keeps_settings else None

    def set_knobs(self, **changes: Any) -> Knobs:
        return self.knobs if self._found is None else super().set_knobs(**changes)

    def close(self, timeout: float = CLOSE_TIMEOUT_S, *, reason: str | None = None) -> None:
        if self._found is not None and self.alive:
            self.lease_s = 0.0
            try:
                super().set_knobs(**self._found.to_dict())
            except (EngineError, ValueError) as error:
                logger.warning("%s keeps the settings of the last run: %s", self.url, error)
        super().close(timeout, reason=reason)


class Servers:
    """The servers that an experiment may use. Takes the place of a job's live engine, but serves nothing itself.

    Args:
        addresses: the first is the default for arms that name no server.
        engine: the first.

    Attributes:
        keeps_settings: whether no arm has settings, so that each server is measured with its own.
    """

    tokenizer: ClassVar[None] = None

    def __init__(self, addresses: Sequence[ServerAddress], engine: HttpEngine) -> None:
        self.addresses = {address.url: address for address in addresses}
        self.info, self.capabilities, self._engine = engine.info, engine.capabilities, engine
        self.keeps_settings = True

    @property
    def model(self) -> Servers:
        """The first argument of ``arms.open_engine``."""
        return self

    def open(self, address: ServerAddress) -> MeasuredServer:
        """Returns a server as an arm's engine; raises ``EngineStartError``."""
        return MeasuredServer(address, keeps_settings=self.keeps_settings)

    @classmethod
    def at(cls, addresses: Sequence[ServerAddress]) -> Servers:
        """Connect to the first server to find out its properties.

        Raises:
            EngineStartError: it does not answer, or refuses; the message is one line.
        """
        first = addresses[0]
        with closing(MeasuredServer(first, keeps_settings=True)) as engine:
            return cls(addresses, engine)

    @property
    def knobs(self) -> Knobs:
        """Those of the first as it has them now, without slow motion, from which arms start."""
        return self._engine.knobs.changed({"slow_motion": 1.0})

    def of_arms(self, arms: Mapping[ArmName, Arm], *, varied: bool) -> dict[ArmName, ServerAddress]:
        """Returns the server of each arm.

        Args:
            varied: whether the experiment also varies a setting.

        Raises:
            ValueError: a setting cannot be changed from here, a server was not named at the start, or both arms are the
                same, as there is one server whose settings cannot be changed.
        """
        self.keeps_settings = not varied and all(arm.knobs == self.knobs for arm in arms.values())
        servers = {name: self._of_arm(name, arm, varied) for name, arm in arms.items()}
        if len(servers) > len(set(servers.values())) and not self.capabilities.knobs:
            raise ValueError(f"A and B are the same server, and {self._why_not_set}")
        return servers

    @property
    def _why_not_set(self) -> str:
        return (
            f"{self.capabilities.reasons['knobs']}: name a second server with --url-b, or sweep the rate or the prompts"
        )

    def _of_arm(self, name: str, arm: Arm, varied: bool) -> ServerAddress:
        if fixed := sorted(set(arm.config) - {"url"}):
            raise ValueError(f"arm {name}: {', '.join(fixed)} can only be set when the other server is started")
        if (varied or arm.knobs != self.knobs) and not self.capabilities.knobs:
            raise ValueError(f"arm {name}: {self._why_not_set}")
        url = arm.config.get("url", next(iter(self.addresses)))
        if url not in self.addresses:
            raise ValueError(f"arm {name}: {url} is not one of this lab's servers: use {', '.join(self.addresses)}")
        return self.addresses[url]
