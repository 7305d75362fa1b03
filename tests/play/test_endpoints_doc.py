"""docs/endpoints.md names every endpoint and every route of the page's server."""

from __future__ import annotations

from pathlib import Path

import httpx

from roseplay.play.playground import Playground
from roseplay.play.web.guard import allowed_hosts
from roseplay.play.web.server import create_app
from tests.play.app_routes import places
from tests.play.conftest import serving
from tests.play.fake_engine import FakeEngine

DOCUMENT = Path(__file__).parents[2] / "docs" / "endpoints.md"
_OF_THE_PAGE = ("/ui/static/", "/ui/plotly.min.js", "/gradio_api/file=")  # its own files


def test_every_endpoint_is_named_with_its_arguments() -> None:
    rows = {line.split("`")[1]: line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if "| `/" in line}
    engine = FakeEngine()
    with serving(engine) as address:
        endpoints = httpx.get(f"{address}/gradio_api/info", timeout=20).json()["named_endpoints"]
    assert rows.keys() == endpoints.keys()
    for name, about in endpoints.items():
        arguments = rows[name].split("|")[2].strip()
        assert arguments == ", ".join(parameter["parameter_name"] for parameter in about["parameters"]), name


def test_every_route_is_named() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    app = create_app(Playground(FakeEngine()), allowed_hosts("127.0.0.1"))
    routes = [place for place in places(app) if not place.gradio and place.method != "HEAD"]
    assert len(routes) > 12
    for place in routes:
        if not place.path.startswith(_OF_THE_PAGE):
            assert f"{place.method} {place.path.split('{')[0].rstrip('/')}" in text, f"{place.method} {place.path}"
