"""Adds a knob, an engine setting and a sampling parameter to the catalogue, then prints as JSON what each part of roseplay
makes of them."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roseplay import config
from roseplay.settings import Number, Switch, Whole, setting


@dataclass(frozen=True, kw_only=True)
class Knobs(config.Knobs):
    patience: int = setting(
        3, Whole(1, 9), "Patience", "mood", "How long it waits.", short="calm", unit="steps", control="patience",
        watch="**TTFT** rises.", costs="Time.", nearest="max_wait_s",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EngineConfig(config.EngineConfig):
    zeal: bool = setting(True, Switch(), "Zeal", "engine: mood", "Whether it tries hard.")


@dataclass(frozen=True, kw_only=True)
class SamplingParams(config.SamplingParams):
    flair: float = setting(
        0.5, Number(0, 4), "Flair", "style", "How florid it is.", control="sampling-flair", slider=(0, 4, 0.5), recommended=True
    )  # fmt: skip


# Anything that imports these names from roseplay.config after this line gets the extended classes.
config.Knobs, config.EngineConfig, config.SamplingParams = Knobs, EngineConfig, SamplingParams  # type: ignore[misc]
# What was made of its declaration before.
config.RECOMMENDED, config.API_FIELDS = (*config.RECOMMENDED, "flair"), {**config.API_FIELDS, "flair": "flair"}


def said(*argv: str) -> str:
    """What ``roseplay ARGV`` prints before it exits."""
    from roseplay.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(list(argv))
    return " ".join(out.getvalue().split())


def refusal(does: Any, *arguments: Any) -> str:
    try:
        does(*arguments)
    except ValueError as error:
        return str(error)
    return "accepted"


def flags() -> dict[str, Any]:
    from roseplay.play.options import parse

    parsed = parse(["--patience", "5", "--no-zeal"])
    return {
        "help": {name: said(*name.split(), "--help") for name in ("play", "serve")},
        "values": [parsed.knobs.patience, parsed.config.zeal],  # type: ignore[attr-defined]
        "refused": said("play", "--patience", "10"),
    }


def page() -> dict[str, Any]:
    from roseplay.play.page import build_page, page_head
    from roseplay.play.playground import Playground
    from tests.play.fake_engine import FakeEngine

    playground = Playground(FakeEngine())
    built = build_page(playground)
    head = page_head(playground)
    given = json.loads(head.rpartition('id="rose-given">')[2].removesuffix("</script>"))
    parts = [part["props"] for part in built.get_config_file()["components"]]
    (control,) = [part for part in parts if part.get("elem_id") == "patience"]
    return {
        "control": [control["label"], control["info"], control["value"]],
        "given": [given["settings"]["knobs"]["patience"], given["settings"]["config"]["zeal"]],
        "order": list(given["controls"]),
        "endpoint": built.get_api_info()["named_endpoints"]["/set_knobs"]["description"],
        "changed": playground.set_knobs({"patience": 7})["patience"],
        "refused": refusal(playground.set_knobs, {"patience": 0}),
        "recording": b"".join(playground.recording()).decode().splitlines()[0],
    }


def sampling() -> dict[str, Any]:
    """What becomes of the parameter in the page, in its endpoints and routes, in the API, and for another server."""
    from roseplay.play.page import build_page, page_head
    from roseplay.play.playground import Playground
    from roseplay.play.web.sampling_routes import sampling_router
    from roseplay.recording.schema import HEADER
    from roseplay.serve.bodies import CompletionBody
    from roseplay.serve.submitting import prepare
    from tests.play.conftest import client_of_routes
    from tests.play.fake_engine import FakeEngine

    engine = FakeEngine()
    playground = Playground(engine)
    built = build_page(playground)
    given = json.loads(page_head(playground).rpartition('id="rose-given">')[2].removesuffix("</script>"))
    (control,) = [
        part["props"]
        for part in built.get_config_file()["components"]
        if part["props"].get("elem_id") == "sampling-flair"
    ]
    client = client_of_routes(sampling_router(playground))
    order = {"tab": "a-tab-of-tests", "changes": {"flair": 2.5}}
    changed = client.post("/ui/sampling", json=order).json()
    refused = client.post("/ui/sampling", json={**order, "changes": {"flair": 9}}).json()["refused"]
    (request_id,) = playground.chats.send("hello", lanes=[1], tab_id=order["tab"])
    endpoints = built.get_api_info()["named_endpoints"]
    body = {"model": "m", "prompt": [1], "max_tokens": 1}

    def sent(**more: Any) -> float:
        return prepare(engine, CompletionBody.model_validate({**body, **more}))[0].params.flair  # type: ignore[attr-defined]

    engine.info.sampling_defaults = {"flair": 3.0}
    return {
        "control": [control["label"], control["info"], control["value"], control["maximum"], control["step"]],
        "given": given["sampling"]["flair"],
        "changed": [changed["values"]["flair"], changed["sources"]["flair"], changed["refused"]],
        "refused": refused,
        "answer": engine.streams[request_id].params.flair,
        "endpoints": [
            "flair: a number from 0 to 4; 0.5 by default. How florid it is." in endpoints[name]["description"]
            and "flair" in [parameter["parameter_name"] for parameter in endpoints[name]["parameters"]]
            for name in ("/submit", "/chat")
        ],
        "api": [sent(flair=1), sent()],
        "schema": CompletionBody.model_json_schema()["properties"]["flair"]["default"],
        "api refuses": refusal_of_api(sent),
        "recorded": "flair" in HEADER["fields"]["info"]["fields"]["sampling_defaults"]["fields"],
    }


def refusal_of_api(send: Any) -> list[Any]:
    from roseplay.serve.errors import ApiError

    try:
        return [send(flair=7)]
    except ApiError as error:
        return [error.param, error.message]


def recording(header: str) -> dict[str, Any]:
    from roseplay.recording.reader import demo_path, parse, read

    demo = demo_path()
    assert demo is not None
    assert '"patience":3' in header
    return {
        "own": parse([header.replace('"patience":3', '"patience":8').encode()], "own").header["knobs"]["patience"],
        "demo": read(demo).header["knobs"]["patience"],
        "refused": refusal(parse, [header.replace('"patience":3', '"patience":"long"').encode()], "own"),
    }


def main() -> None:
    found: dict[str, Any] = {"flags": flags(), "page": page(), "sampling": sampling()}
    found["recording"] = recording(found["page"]["recording"])
    docs = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "settings.py"))
    found["docs"] = [docs["settings_page"](), docs["endpoints_page"](), docs["api_page"]()]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
