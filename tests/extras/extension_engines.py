"""The engines of extensions have all of ``EngineLike``; mypy checks this file with the product."""

from __future__ import annotations

from roseplay.engine.engine_like import EngineLike
from roseplay.extras.ray.engine import RayEngine
from roseplay.extras.servers.engine import HttpEngine


def all_of_them(server: HttpEngine, replicas: RayEngine) -> list[EngineLike]:
    return [server, replicas]
