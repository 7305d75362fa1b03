"""``roseplay serve --ray``: replicas on this machine, with the server itself as ingress."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import roseplay.extras.ray.environment  # noqa: F401  # before Ray
from roseplay.engine.errors import EngineStartError
from roseplay.engine.start import open_tokenizer
from roseplay.extras.ray.deployment import needs_gpu, replicas
from roseplay.extras.ray.deployment_settings import RaySettings, num_cpus
from roseplay.extras.ray.engine import RayEngine
from roseplay.extras.ray.extra import ray, serve
from roseplay.extras.ray.failures import what_failed
from roseplay.formats.text import one_line

START_TIMEOUT_S = 900.0


@contextlib.contextmanager
def local_engine(settings: RaySettings) -> Iterator[RayEngine]:
    """Start Ray and the replicas on the loopback address; both end with the context.

    Raises:
        ValueError: the machine has too few CPUs or GPUs for the replicas. EngineStartError: they did not start; one
            line.
    """
    settings = settings.on_this_machine(_gpus() if needs_gpu(settings.config) else None)
    tokenizer = open_tokenizer(settings.model, settings.config)  # fails at once if there is no such model
    with local_ray(num_cpus()):
        handle, about = deploy(settings)
        with RayEngine(handle, about, settings.config, tokenizer, settings.max_replicas) as engine:
            engine.model = settings.model
            yield engine


@contextlib.contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    """Start a Ray of this program's own, with Ray Serve and with ``cpus`` CPUs for replicas.

    Ray's HTTP proxy is not started: the program that holds the engine is the ingress, which saves a hop for each token.
    """
    quiet = logging.getLogger().getEffectiveLevel() > logging.INFO
    ray.init(
        address="local",
        num_cpus=cpus,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=not quiet,
        logging_level=logging.ERROR if quiet else logging.INFO,
    )
    logging.getLogger("ray.serve").setLevel(logging.ERROR if quiet else logging.INFO)
    try:
        serve.start(proxy_location="Disabled")
        yield
    finally:
        with contextlib.redirect_stdout(io.StringIO()):  # Ray prints there that the tasks it ends have failed
            serve.shutdown()
            ray.shutdown()


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def deploy(settings: RaySettings, name: str = "roseplay") -> tuple[Any, Any]:
    """Start replicas, or replace those of the same name; returns their handle and the ``About`` of one of them.

    Raises:
        EngineStartError: they did not start; the message is one line.
    """
    try:
        handle = serve.run(replicas(settings), name=name, route_prefix=None, blocking=False)
        return handle, handle.about.remote().result(timeout_s=START_TIMEOUT_S)
    except Exception as error:
        raise EngineStartError(f"the replicas did not start: {_why(name) or what_failed(error)}") from None


def _why(name: str) -> str:
    """Returns the error of a replica that could not start, which Ray has only at the end of a traceback, as text."""
    application = serve.status().applications.get(name)
    overviews = application.deployments.values() if application is not None else ()
    lines = [overview.message.strip().split("\n")[-1] for overview in overviews]
    return one_line("; ".join(line.partition("Error: ")[2] or line for line in lines))
