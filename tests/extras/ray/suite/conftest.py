"""Two replicas of the embedded model on Ray Serve, behind the API. ``make ray`` installs Ray and runs this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.start import open_tokenizer
from roseplay.extras.ray.deployment_settings import RaySettings
from roseplay.extras.ray.engine import RayEngine
from roseplay.extras.ray.monitor import RayMonitor, replicas_router
from roseplay.serve.app import ServedEngine
from tests.serve.conftest import serving

MODEL = "tiny-chat"
KNOBS = Knobs(max_batch_size=8)


def settings(num_blocks: int = 200, worker: str = "thread", **more: Any) -> RaySettings:
    config = EngineConfig(worker=worker, threads=1, num_blocks=num_blocks)
    return RaySettings(MODEL, config, more.pop("knobs", KNOBS), replicas=2, grace_s=20.0, **more)


@pytest.fixture(scope="session")
def own_ray() -> Iterator[None]:
    from roseplay.extras.ray.local import local_ray  # imported here, since this file is also read without Ray

    with local_ray(8):  # may exceed the machine's CPUs: deployments coexist, and most of them are idle
        yield


@pytest.fixture(scope="session")
def deployed(own_ray: None) -> Callable[..., contextlib.AbstractContextManager[RayEngine]]:
    """Two replicas with their own settings, which end with the context."""
    from roseplay.extras.ray.extra import serve
    from roseplay.extras.ray.local import deploy

    @contextlib.contextmanager
    def deployed(name: str, **options: Any) -> Iterator[RayEngine]:
        found = settings(**options)
        handle, about = deploy(found, name)
        try:
            with RayEngine(handle, about, found.config, open_tokenizer(MODEL, found.config), 2) as engine:
                yield engine
        finally:
            serve.delete(name)

    return deployed


@pytest.fixture(scope="session")
def engine(deployed: Any) -> Iterator[RayEngine]:
    with deployed("shared") as engine:
        yield engine


@pytest.fixture(scope="session")
def address(engine: RayEngine) -> Iterator[str]:
    with serving(engine, monitor=RayMonitor(ServedEngine(engine)), routers=[replicas_router(engine)]) as address:
        yield address
