"""Adds a knob and an engine setting to the catalogue, then prints as JSON what each part of roseplay makes of them."""

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
from roseplay.settings import Switch, Whole, setting


@dataclass(frozen=True, kw_only=True)
class Knobs(config.Knobs):
    patience: int = setting(
        3, Whole(1, 9), "Patience", "mood", "How long it waits.", short="calm", unit="steps", control="patience",
        watch="**TTFT** rises.", costs="Time.", nearest="max_wait_s",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EngineConfig(config.EngineConfig):
    zeal: bool = setting(True, Switch(), "Zeal", "engine: mood", "Whether it tries hard.")


# Anything that imports these names from roseplay.config after this line gets the extended classes.
config.Knobs, config.EngineConfig = Knobs, EngineConfig  # type: ignore[misc]


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
        "help": {name: said(*name.split(), "--help") for name in ("play", "lab", "bench streaming")},
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
        "lab": playground.lab.describe(),
        "recording": b"".join(playground.recording()).decode().splitlines()[0],
    }


def lab() -> dict[str, Any]:
    from roseplay.lab.order import parse_experiment

    body = {"scenario": "token-budget", "a": {"knobs": {"patience": 2}, "config": {"zeal": False}}}
    arm = parse_experiment(body).arms["A"]
    body["a"] = {"knobs": {"patience": 10}}
    return {"arm": [arm.knobs.patience, arm.config], "refused": refusal(parse_experiment, body)}  # type: ignore[attr-defined]


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
    found: dict[str, Any] = {"flags": flags(), "page": page(), "lab": lab()}
    found["recording"] = recording(found["page"]["recording"])
    docs = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "settings.py"))
    found["docs"] = [docs["settings_page"](), docs["endpoints_page"]()]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
