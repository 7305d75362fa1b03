"""Every route of the page's server, as the application itself lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Gradio's routes that the page and ``gradio_client`` use; all others are closed.
OPEN = {
    ("GET", "/"), ("HEAD", "/"), ("GET", "/config"), ("GET", "/theme.css"), ("GET", "/favicon.ico"),
    ("GET", "/manifest.json"), ("GET", "/pwa_icon"),
    ("GET", "/assets/{path:path}"), ("GET", "/static/{path:path}"), ("GET", "/gradio_api/info"),
    ("GET", "/gradio_api/queue/data"), ("POST", "/gradio_api/queue/join"), ("POST", "/gradio_api/cancel"),
    ("POST", "/gradio_api/reset"), ("POST", "/gradio_api/run/{api_name}"), ("POST", "/gradio_api/call/{api_name}"),
    ("GET", "/gradio_api/call/{api_name}/{event_id}"),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One method of one route."""

    method: str
    path: str
    gradio: bool
    queries: tuple[str, ...] = field(default=())
    refuses: bool = False  # responds in OpenAI's format that it is not served

    @property
    def open(self) -> bool:
        return not self.gradio or (self.method, self.path) in OPEN

    def filled(self, value: str = "x") -> str:
        """The path with ``value`` in place of its parameters."""
        return re.sub(r"{[^}]*}", value, self.path)


def places(app: Any, least: int = 60) -> list[Place]:
    """All routes, including mounted and included ones."""
    found = dict.fromkeys(_walk(app.routes, gradio=False))
    assert len(found) > least, "the application lists fewer routes than it has"
    return list(found)


def _walk(routes: Any, gradio: bool) -> Iterator[Place]:
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from _walk(route.effective_candidates(), gradio)
        elif hasattr(route, "original_router"):
            yield from _walk(route.original_router.routes, gradio)
        elif getattr(getattr(route, "app", None), "routes", None) is not None:
            yield from _walk(route.app.routes, gradio=True)
        else:
            route = route if getattr(route, "dependant", None) else getattr(route, "original_route", route)
            queries = tuple(sorted(p.name for p in getattr(getattr(route, "dependant", None), "query_params", ())))
            for method in sorted(getattr(route, "methods", None) or ["WEBSOCKET"]):
                yield Place(method, route.path, gradio, queries, route.name in ("refuse", "unknown", "refuse_unknown"))
