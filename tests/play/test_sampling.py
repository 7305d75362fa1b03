"""The route that changes the settings of a tab's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from roseplay.play.answer_settings import MAX_SYSTEM_CHARS, defaults
from roseplay.play.playground import Playground
from roseplay.play.web.sampling_routes import sampling_router
from tests.play.conftest import client_of_routes
from tests.play.fake_engine import INFO, FakeEngine

TAB = "a-tab-of-tests"
Send = Callable[..., dict[str, Any]]


def sender(engine: FakeEngine) -> Send:
    client = client_of_routes(sampling_router(Playground(engine)))

    def send(**asked: Any) -> dict[str, Any]:
        reply = client.post("/ui/sampling", json={"tab": TAB, **asked})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    return send


@pytest.fixture
def send(engine: FakeEngine) -> Send:
    return sender(engine)


def test_a_lane_has_its_own_settings_over_those_of_all(send: Send) -> None:
    first = send(changes={"top_p": "0.5", "stop": "END\n\nline\\n", "seed": " 7 ", "max_new_tokens": 20.0})
    assert first["own"] == 4
    values = {"top_p": 0.5, "top_k": None, "stop": ["END", "line\n"], "seed": 7, "max_new_tokens": 20}
    assert first["values"].items() >= values.items()
    lane = send(lane=2, changes={"temperature": 1.5, "top_p": 0.5})  # the second has this value already
    assert (lane["own"], lane["values"]["temperature"], lane["values"]["top_p"]) == (1, 1.5, 0.5)
    assert (send()["own"], send()["values"]["temperature"]) == (4, 0.6)
    assert send(lane=2, reset=True)["values"]["temperature"] == 0.6
    cleared = send(changes={"seed": "", "system": None, "top_k": 0})
    assert cleared["refused"] == {}
    assert cleared["values"].items() >= {"seed": None, "system": "", "top_k": None}.items()


def test_a_lane_may_have_a_tenant_and_a_priority(send: Send) -> None:
    lane = send(lane=2, changes={"tenant": " a team ", "priority": "-3"})
    assert (lane["values"]["tenant"], lane["values"]["priority"]) == ("a team", -3)
    assert send(lane=2, changes={"tenant": ""})["values"]["tenant"] is None


def test_what_is_wrong_is_refused_by_itself(send: Send) -> None:
    refused = {
        "seed": ("twelve", "seed is 'twelve'"),
        "colour": (1, "unknown setting colour"),
        "priority": ("soon", "priority is 'soon'"),
        "temperature": (-1, "temperature is -1"),
        "structured_outputs": ('{"choice": []}', "structured_outputs"),
        "top_k": (1.5, "top_k is 1.5"),
        "max_new_tokens": (2048, "use at most 2047"),
        "stop": (["x"] * 17, "use at most 16 strings"),
        "system": ("x" * (MAX_SYSTEM_CHARS + 1), "8\u202f001 characters"),
    }
    usual = send()["values"]
    reply = send(changes={"min_p": 0.3, **{name: value for name, (value, _) in refused.items()}})
    assert (reply["own"], reply["values"]) == (1, {**usual, "min_p": 0.3})
    assert reply["refused"].keys() == refused.keys()
    for name, (_, said) in refused.items():
        assert said in reply["refused"][name]
    assert "stop is" in send(changes={"stop": [3]})["refused"]["stop"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tab": TAB, "lane": 9}, "lane"),
        ({"lane": 1}, "tab is missing"),
        ({"tab": TAB, "changes": []}, "changes"),
        ([], "the body"),
    ],
)
def test_a_bad_request_is_told(playground: Playground, asked: Any, said: str) -> None:
    reply = client_of_routes(sampling_router(playground)).post("/ui/sampling", json=asked)
    assert (reply.status_code, said in reply.json()["detail"]) == (422, True)


def test_the_models_author_says_where_lanes_begin(engine: FakeEngine) -> None:
    engine.info = replace(INFO, sampling_defaults={"temperature": 1.2, "max_new_tokens": 9000})
    send = sender(engine)
    first = send(changes={"top_k": 7})
    assert (first["values"]["temperature"], first["values"]["top_p"]) == (1.2, 1.0)  # not roseplay's default of 0.9
    assert first["values"]["max_new_tokens"] == 1024  # half of the model's context
    assert [first["sources"][name] for name in ("temperature", "top_k", "seed")] == ["model", "tab", "page"]
    lane = send(lane=2, changes={"temperature": 0.1})
    assert [lane["sources"][name] for name in ("temperature", "top_k")] == ["lane", "tab"]
    assert send(lane=2, reset=True)["values"]["temperature"] == 1.2


def test_without_an_author_it_is_this_program(send: Send) -> None:
    first = send()
    assert (first["values"]["temperature"], first["values"]["top_p"]) == (0.6, 0.9)
    assert set(first["sources"].values()) == {"page"}


@pytest.mark.parametrize(("author", "penalty"), [({}, 1.1), ({"temperature": 0.2}, 1.0)])
def test_smollm2_repeats_itself_less_unless_its_checkpoint_says_how_to_draw(author: Any, penalty: float) -> None:
    info = replace(INFO, model="SmolLM2-135M-Instruct", sampling_defaults=author)
    assert defaults(info).repetition_penalty == penalty
