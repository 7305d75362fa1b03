"""docs/endpoints.md has a row for every possible action, with the endpoint or route that performs it; the README.md of an
extension has those of its tab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from roseplay.config import Knobs
from roseplay.play.answer_settings import NAMES
from roseplay.play.model_picker import ModelPicker
from roseplay.play.tab import added_tabs
from roseplay.play.web import assets
from roseplay.settings import settings_of
from tests.play.app_routes import places
from tests.play.conftest import client_of
from tests.play.model_host import model_host

DOCUMENTS = (
    Path(__file__).parents[2] / "docs" / "endpoints.md",
    *(tab.static.with_name("README.md") for tab in added_tabs()),
)
_OF_THE_PAGE = ("/ui/static/", "/ui/plotly-basic.min.js")  # the page's own files
_PARAMETER = re.compile(r"\{[^}]*\}|(?<=/)[A-Z]+(?=/|$)")  # {file} in a route, FILE in the document


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    with model_host() as models:
        yield client_of(models.host, picker=ModelPicker(models.host, trusted=True))


@pytest.fixture(scope="module")
def endpoints(page: TestClient) -> dict[str, Any]:
    return dict(page.get("/gradio_api/info").json()["named_endpoints"])


def rows() -> list[list[str]]:
    """The cells of each table row."""
    table: list[str] = []
    for document in DOCUMENTS:
        _, _, after = document.read_text(encoding="utf-8").partition("| action |")
        table += after.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_each_thing_that_can_be_done_has_one_door(page: TestClient, endpoints: dict[str, Any]) -> None:
    """Every endpoint and every route belongs to exactly one row, and every row has one."""
    routes = [place for place in places(page.app) if not (place.gradio or place.refuses or place.method == "HEAD")]
    there = [f"{place.method} {place.path}" for place in routes if not place.path.startswith(_OF_THE_PAGE)]
    assert len(there) > 20 and len(endpoints) > 8
    doors = []
    for done, _, door, *_ in rows():
        (only,) = re.findall(r"`([^`]+)`", door)
        assert door == f"`{only}`", f"{done}: {door}"
        doors.append(_PARAMETER.sub("*", only))
    assert sorted(doors) == sorted([*endpoints, *(_PARAMETER.sub("*", route) for route in there)])
    things = [done for done, *_ in rows()]
    assert len(things) == len(set(things))


def test_every_endpoint_is_named_with_its_arguments(endpoints: dict[str, Any]) -> None:
    arguments = {door.strip("`"): takes for _, _, door, takes, _ in rows()}
    for name, about in endpoints.items():
        more = [setting for setting in NAMES if setting not in arguments[name].split(", ")]
        takes = arguments[name].replace("and the other [settings of answers](#settings-of-answers)", ", ".join(more))
        assert takes == ", ".join(parameter["parameter_name"] for parameter in about["parameters"]), name


def test_scripts_of_the_page_call_no_endpoint_by_hand() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in assets.STATIC.rglob("*.js")}
    assert [name for name, text in scripts.items() if "gradio_api" in text] == []


def test_endpoints_say_what_their_settings_take(endpoints: dict[str, Any]) -> None:
    knobs = endpoints["/set_knobs"]["description"].splitlines()
    for name, setting in settings_of(Knobs).items():
        (line,) = [line for line in knobs if line.startswith(f"{name}: ")]
        assert setting.takes in line and setting.help in line
    for name in ("/chat", "/submit"):
        line = "max_new_tokens: an integer of at least 1, in tokens; 128 by default."
        assert line in endpoints[name]["description"]
        arguments = {parameter["parameter_name"] for parameter in endpoints[name]["parameters"]}
        assert arguments >= set(NAMES)
