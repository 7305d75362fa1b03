"""docs/endpoints.md names every endpoint and every route of the page's server."""

from __future__ import annotations

from pathlib import Path

import httpx

from roseplay.config import Knobs
from roseplay.play.model_picker import ModelPicker
from roseplay.play.settings import NAMES
from roseplay.play.web.server import create_app
from roseplay.serve.guard import allowed_hosts
from roseplay.settings import settings_of
from tests.play.app_routes import places
from tests.play.conftest import serving
from tests.play.fake_engine import FakeEngine
from tests.play.model_host import model_host

DOCUMENT = Path(__file__).parents[2] / "docs" / "endpoints.md"
_OF_THE_PAGE = ("/ui/static/", "/ui/plotly.min.js")  # its own files


def test_every_endpoint_is_named_with_its_arguments() -> None:
    rows = {line.split("`")[1]: line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if "| `/" in line}
    engine = FakeEngine()
    with serving(engine) as address:
        endpoints = httpx.get(f"{address}/gradio_api/info", timeout=20).json()["named_endpoints"]
    assert rows.keys() == endpoints.keys()
    for name, about in endpoints.items():
        arguments = rows[name].split("|")[2].strip()
        assert arguments == ", ".join(parameter["parameter_name"] for parameter in about["parameters"]), name


def test_endpoints_say_what_their_settings_take() -> None:
    with serving(FakeEngine()) as address:
        endpoints = httpx.get(f"{address}/gradio_api/info", timeout=20).json()["named_endpoints"]
    knobs = endpoints["/set_knobs"]["description"].splitlines()
    for name, setting in settings_of(Knobs).items():
        (line,) = [line for line in knobs if line.startswith(f"{name}: ")]
        assert setting.takes in line and setting.help in line
    for name in ("/chat", "/submit"):
        line = "max_new_tokens: an integer of at least 1, in tokens; 128 by default."
        assert line in endpoints[name]["description"]
        arguments = {parameter["parameter_name"] for parameter in endpoints[name]["parameters"]}
        assert arguments >= set(NAMES)


def test_every_route_is_named() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    with model_host() as models:
        app = create_app(models.host, allowed_hosts("127.0.0.1"), picker=ModelPicker(models.host, trusted=True))
    routes = [place for place in places(app) if not (place.gradio or place.refuses or place.method == "HEAD")]
    assert len(routes) > 12
    for place in routes:
        if not place.path.startswith(_OF_THE_PAGE):
            assert f"{place.method} {place.path.split('{')[0].rstrip('/')}" in text, f"{place.method} {place.path}"
