"""Prints as JSON what the Lab makes of the settings that ``tests.added_settings`` adds."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.added_settings import refusal, said


def order() -> dict[str, Any]:
    from roseplay.extras.lab.order import parse_experiment

    body = {"scenario": "token-budget", "a": {"knobs": {"patience": 2}, "config": {"zeal": False}}}
    arm = parse_experiment(body).arms["A"]
    body["a"] = {"knobs": {"patience": 10}}
    return {"arm": [arm.knobs.patience, arm.config], "refused": refusal(parse_experiment, body)}  # type: ignore[attr-defined]


def main() -> None:
    from roseplay.extras.lab.lab import Lab
    from tests.play.fake_engine import FakeEngine

    json.dump({"help": said("lab", "--help"), "offered": Lab(FakeEngine()).describe(), "order": order()}, sys.stdout)


if __name__ == "__main__":
    main()
