"""The API on a cluster: ``serve run roseplay.serve.ray.app:app model=NAME replicas=2``, or by ``serve deploy``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from fastapi import FastAPI

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.start import open_tokenizer
from roseplay.serve.app import ServedEngine, create_app
from roseplay.serve.drain import Drain
from roseplay.serve.guard import allowed_hosts
from roseplay.serve.options import KEY_VARIABLE
from roseplay.serve.ray.deployment import replicas
from roseplay.serve.ray.deployment_settings import RaySettings
from roseplay.serve.ray.engine import RayEngine
from roseplay.serve.ray.extra import serve
from roseplay.serve.ray.monitor import RayMonitor
from roseplay.serve.ray.node_address import listen_on_node_address
from roseplay.serve.ray.routes import replicas_router

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

MAX_ONGOING = 1000


@serve.ingress()
class Ingress:
    """The application of ``roseplay serve``, in front of replicas. It reads its key from its process's environment."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, handle: Any, settings: RaySettings, hosts: list[str], origins: list[str]
    ) -> None:
        listen_on_node_address()
        about = await handle.about.remote()
        tokenizer = await asyncio.to_thread(open_tokenizer, settings.model, settings.config)
        self._hosts, self._names, self._origins = hosts, settings.names, origins
        self._engine = RayEngine(handle, about, settings.config, tokenizer, settings.max_replicas)
        self._engine.model = settings.model

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Ray Serve after ``__init__``."""
        served = ServedEngine(cast("Engine", self._engine))
        hosts = allowed_hosts("127.0.0.1", self._hosts) | ({"*digits*"} if self._hosts else set())
        key = os.environ.get(KEY_VARIABLE) or None
        routers = [replicas_router(self._engine)]
        names, origins, monitor = self._names, self._origins, RayMonitor(served, names=self._names)
        return create_app(
            served, hosts, key=key, drain=Drain(), monitor=monitor, names=names, origins=origins, routers=routers
        )


def app(args: Mapping[str, Any]) -> Any:
    """Returns the application of Ray Serve.

    Args:
        args: ``model``; ``replicas`` (1); ``most_replicas``, for autoscaling; ``engine`` and ``knobs``, settings by
            name; ``hosts``, names under which clients may reach the API; ``served_model_name``, one or more by which
            they may ask for the model; ``allow_origin``, web sites whose pages may use the API; ``round_robin``;
            ``grace_s``.

    Raises:
        ValueError: an argument is wrong.
    """
    known = {"model", "replicas", "most_replicas", "engine", "knobs", "hosts", "served_model_name", "round_robin"}
    known |= {"allow_origin", "grace_s"}
    unknown = sorted(set(args) - known)
    if unknown or "model" not in args:
        raise ValueError(f"unknown argument {', '.join(unknown)}" if unknown else "give the argument model")
    most = args.get("most_replicas")
    settings = RaySettings(
        model=str(args["model"]),
        config=EngineConfig(**args.get("engine", {})),
        knobs=Knobs(**args.get("knobs", {})),
        replicas=int(args.get("replicas", 1)),  # `serve run` passes strings
        most_replicas=None if most is None else int(most),
        round_robin=str(args.get("round_robin", False)).lower() == "true",
        grace_s=float(args.get("grace_s", 30.0)),
        names=tuple(_each(args, "served_model_name")),
    )
    ingress = serve.deployment(Ingress, name="Ingress").options(
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.grace_s,
    )
    return ingress.bind(replicas(settings), settings, _each(args, "hosts"), _each(args, "allow_origin"))


def _each(args: Mapping[str, Any], name: str) -> list[str]:
    """Returns the values of an argument that takes one or more; `serve run` passes one, as text."""
    given = args.get(name, [])
    return [given] if isinstance(given, str) else list(given)
