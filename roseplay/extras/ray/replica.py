"""A replica: one engine, whose requests come from the ingress."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from prometheus_client import generate_latest

from roseplay.config import SamplingParams
from roseplay.core.cache_events import block_hashes
from roseplay.engine.client import Engine
from roseplay.engine.errors import EngineError
from roseplay.extras.ray.autoscaling import KV_USAGE
from roseplay.extras.ray.deployment_settings import RaySettings
from roseplay.extras.ray.extra import serve
from roseplay.extras.ray.messages import NO_CHANGES, About, KnobChanges, Part
from roseplay.extras.ray.node_address import listen_on_node_address
from roseplay.extras.ray.replica_figures import FigureCounter, ReplicaFigures
from roseplay.extras.ray.reports import Report
from roseplay.extras.ray.resident_blocks import ResidentBlocks
from roseplay.extras.ray.shared_stream import SharedStream
from roseplay.serve.follower import Follower
from roseplay.serve.metrics import Metrics
from roseplay.serve.model_names import ModelNames

MOST_REPORTED = 2000  # hashes of resident blocks
HEALTH_S = 2.0


class Replica:
    """A process of the deployment. Its methods are called by the ingress and by Ray Serve.

    Raises:
        EngineStartError: the engine could not start. RuntimeError: it cannot be kept on the loopback address.
    """

    def __init__(self, settings: RaySettings) -> None:
        listen_on_node_address()
        self.engine = Engine(settings.model, config=settings.config, knobs=settings.knobs)
        self._name = uuid.uuid4().hex
        self._changes = NO_CHANGES
        self._shared: dict[str, SharedStream] = {}
        self._resident = ResidentBlocks()
        rank = _rank()
        name = ModelNames(settings.names).listed(self.engine)[0]
        self._metrics = Metrics(self.engine.info, rank, model_name=name, kv_dtype=settings.config.kv_dtype)
        self._figures = FigureCounter(self.engine.info, rank)
        takers = (self._resident.take, self._metrics.take, self._figures.take)
        self._follower = Follower(lambda: self.engine, *takers)
        self._follower.start()

    # -- requests

    async def generate(
        self,
        token_ids: list[int],
        params: SamplingParams,
        grammar_bytes: int,
        changes: KnobChanges,
        ingress: str,
        request_id: int,
    ) -> AsyncGenerator[list[tuple[int, Part]]]:
        """Yields parts of the answer to a prompt and of others, see ``SharedStream``; ending the call ends the request.

        Args:
            grammar_bytes: see ``Engine.submit``.
            ingress: name of the caller. request_id: unique there.

        Raises:
            EngineBusyError: too many requests wait. EngineError: the engine has failed.
        """
        self.apply(changes)
        self._resident.use(block_hashes(token_ids, self.engine.info.block_size))
        ended = asyncio.Event()
        shared = self._shared.setdefault(ingress, SharedStream(self.engine.clock))
        listener = shared.listener(ended)
        submit = partial(self.engine.submit, token_ids, params, on_update=listener, grammar_bytes=grammar_bytes)
        stream = await asyncio.to_thread(submit) if self.engine.knobs.admission == "blocking" else submit()
        try:
            async with aclosing(shared.parts(request_id, stream, ended)) as parts:
                async for some in parts:
                    if stream.error is not None and (lost := self.engine.overdue) is not None:
                        raise EngineError(lost)  # another replica may take the request
                    yield some
        finally:
            stream.cancel()
            if not shared:
                self._shared.pop(ingress, None)

    def apply(self, changes: KnobChanges) -> None:
        """Change the engine's knobs, unless it already has changes as new as these."""
        if changes.changed_at > self._changes.changed_at:
            self._changes = changes
            self.engine.set_knobs(**changes.values)

    def clear_cache(self) -> None:
        self.engine.clear_cache()

    # -- state

    def about(self) -> About:
        return About(self.engine.info, self.engine.knobs)

    async def health(self, timeout: float = HEALTH_S) -> str:
        """Returns what the engine is doing, by a round trip through its loop; raises ``RuntimeError`` if unhealthy."""
        health = await asyncio.to_thread(self.engine.health, timeout)
        if not health.ok:
            raise RuntimeError(health.detail)
        return health.detail

    def report(self) -> Report:
        """Returns the engine's families."""
        self._follower.catch_up()
        self._metrics.look(self.engine.num_unfinished)
        return Report(self._name, generate_latest(self._metrics.registry))

    def figures(self) -> ReplicaFigures:
        self._follower.catch_up()
        return self._figures.look(self.engine.num_unfinished)

    # -- called by Ray Serve

    async def check_health(self) -> None:
        """Raises the errors of ``health``; Ray then replaces the replica."""
        await self.health()

    def record_routing_stats(self) -> dict[str, Any]:
        """Returns the router's input, see ``PrefixRouter``."""
        self._follower.catch_up()
        return {"unfinished": self.engine.num_unfinished, "blocks": self._resident.newest(MOST_REPORTED)}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the autoscaling policy's input besides the number of requests."""
        return {KV_USAGE: self.figures().kv_usage}

    def __del__(self) -> None:
        """Called by Ray when the replica has finished its requests or the grace period is over."""
        if hasattr(self, "_follower"):
            self._follower.close()
            self.engine.close()


def _rank() -> str:
    """Returns the replica's rank, its label in the metrics. A successor takes the rank over."""
    try:
        return str(serve.get_replica_context().rank.rank)
    except Exception:  # ranks are new in Ray; without one, the time tells replicas apart
        return f"{time.time():.3f}"
