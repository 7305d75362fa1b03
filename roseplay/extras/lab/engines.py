"""Opens the arms' engines, together or one at a time, warms them up and closes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from roseplay.config import Knobs
from roseplay.core.info import EngineInfo
from roseplay.extras.lab.arms import ArmConfig, OpenArm, OpenEngine, settings
from roseplay.extras.lab.document import ArmSettings
from roseplay.extras.lab.measuring import RunError, StoppedError
from roseplay.extras.lab.types import ArmName, Plain
from roseplay.extras.simulation.evidence import Evidence
from roseplay.own_models import without_path


class ArmEngines:
    """One engine for each arm; arms with equal configs share one.

    Args:
        in_turn: close each engine before opening the next.
        warm_up: called with an arm and its engine before the arm's first run on that engine.
        give_up: cancels starting engines; also set when one of them fails.

    Attributes:
        infos: by arm, once its engine has been opened.
    """

    def __init__(
        self,
        model: Any,
        configs: Mapping[ArmName, ArmConfig],
        knobs: Mapping[ArmName, Knobs],
        *,
        in_turn: bool,
        open_engine: OpenEngine,
        warm_up: Callable[[ArmName, OpenArm], object],
        give_up: threading.Event,
    ) -> None:
        self.infos: dict[ArmName, EngineInfo] = {}
        self._applied: dict[ArmName, Plain] = {}  # the knobs last measured with; empty if a server does not report them
        self._model, self._configs, self._knobs, self._in_turn = model, configs, knobs, in_turn
        self._open_engine, self._warm_up, self._give_up = open_engine, warm_up, give_up
        self._open: dict[ArmConfig, OpenArm] = {}
        self._warm: set[ArmName] = set()
        self._failure: str | None = None

    def start(self) -> None:
        """Open and warm up all engines; with ``in_turn``, ``get`` does so instead.

        Raises:
            StoppedError: the start was cancelled.
            RunError: an engine did not start.
        """
        if self._in_turn:
            return
        one_each = {config: arm for arm, config in self._configs.items()}
        with ThreadPoolExecutor(len(one_each), "roseplay-lab-start") as pool:  # starting is mostly importing
            for arm in one_each.values():
                pool.submit(self._start, arm)
        self._check()
        for arm in self._configs:
            self.get(arm)

    def get(self, arm: ArmName, knobs: Knobs | None = None) -> OpenArm:
        """Returns the arm's engine, warmed up, with ``knobs`` or else the arm's own; raises the errors of ``start``."""
        config = self._configs[arm]
        if config not in self._open:
            self.close()
            self._start(arm)
            self._check()
        engine = self._open[config]
        self.infos[arm] = engine.info
        try:
            applied = engine.set_knobs(**(knobs or self._knobs[arm]).to_dict())
        except ValueError as error:
            raise RunError(f"arm {arm}: {error}") from None
        self._applied[arm] = applied.to_dict() if engine.capabilities.knobs else {}
        if arm not in self._warm:
            self._warm_up(arm, engine)
            self._warm.add(arm)
        return engine

    def settings(self, arm: ArmName, evidence: Evidence | None) -> ArmSettings:
        """Returns an arm's settings and, if it is simulated, what its figures are worth."""
        info = self.infos[arm]
        knobs = self._applied[arm] if info.server else self._knobs[arm].to_dict()
        details: ArmSettings = {"knobs": knobs, "config": settings(self._configs[arm], info)}
        if info.server_settings:
            details["server"] = {**info.server_settings}
        if evidence is not None and info.simulated is not None:
            error_pct = None if evidence.bound is None else round(100 * evidence.bound, 1)
            details["simulated"] = {"evidence": info.simulated, "label": evidence.label, "error_pct": error_pct}
        return details

    def close(self) -> None:
        """Close all open engines."""
        engines = list(self._open.values())
        self._open.clear()
        self._warm.clear()
        with ThreadPoolExecutor(len(engines) or 1, "roseplay-lab-close") as pool:
            for engine in engines:
                pool.submit(engine.close)

    def _start(self, arm: ArmName) -> None:
        """Open the arm's engine; if that fails, cancel the start of the others."""
        config = self._configs[arm]
        try:
            self._open[config] = self._open_engine(self._model, config, self._knobs[arm], self._give_up)
        except Exception as error:
            if not self._give_up.is_set():
                whose = [name for name, other in self._configs.items() if other == config]
                which = f"arm {arm}" if len(whose) == 1 else "the arms' engine"
                self._failure = f"{which} did not start: {without_path(error, self._model)}"
                self._give_up.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise RunError(self._failure)
        if self._give_up.is_set():
            raise StoppedError
