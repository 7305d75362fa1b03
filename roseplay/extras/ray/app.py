"""The API on a cluster: ``serve run roseplay.extras.ray.app:app model=NAME replicas=2``, or by ``serve deploy``."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from click import ClickException
from fastapi import FastAPI
from pydantic import BeforeValidator, Field

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.start import apply_settings, open_tokenizer
from roseplay.extras.ray.deployment import replicas
from roseplay.extras.ray.deployment_settings import RaySettings
from roseplay.extras.ray.engine import RayEngine
from roseplay.extras.ray.extra import serve
from roseplay.extras.ray.monitor import RayMonitor, replicas_router
from roseplay.extras.ray.node_address import listen_on_node_address
from roseplay.formats.invalid import Object, validated
from roseplay.serve.app import ServedEngine, create_app
from roseplay.serve.drain import Drain
from roseplay.serve.guard import allowed_hosts
from roseplay.serve.options import KEY_VARIABLE, origin

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


class ArgumentError(ClickException, ValueError):
    """An argument is wrong; ``serve run`` prints the line and exits with code 2."""

    exit_code = 2


Texts = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class Arguments(Object):
    """The application's arguments. ``serve run`` passes each as text, and one where there may be several."""

    model: str
    replicas: int = 1
    most_replicas: int | None = None  # for autoscaling
    engine: dict[str, Any] = Field({})  # settings by name
    knobs: dict[str, Any] = Field({})
    hosts: Texts = ()  # names under which clients may reach the API
    served_model_name: Texts = ()  # by which they may ask for the model
    allow_origin: Texts = ()  # web sites whose pages may use the API
    round_robin: bool = False
    grace_s: float = 30.0


def app(args: Mapping[str, Any]) -> Any:
    """Returns the application of Ray Serve for ``Arguments``; raises ``ArgumentError``."""
    try:
        options = validated(Arguments, dict(args))
        config, knobs = apply_settings(EngineConfig(), Knobs(), {**options.engine, **options.knobs})
        scale = options.replicas, options.most_replicas, options.round_robin
        settings = RaySettings(options.model, config, knobs, *scale, options.grace_s, options.served_model_name)
        origins = [origin(site) for site in options.allow_origin]
    except (ValueError, ArgumentTypeError) as error:
        raise ArgumentError(str(error)) from None
    ingress = serve.deployment(Ingress, name="Ingress").options(
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.grace_s,
    )
    return ingress.bind(replicas(settings), settings, options.hosts, origins)
