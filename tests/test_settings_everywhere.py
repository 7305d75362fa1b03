"""A field added to the catalogue appears wherever settings do; ``added_settings.py`` adds three in its own process.

How the page's scripts handle them is tested in ``tests/browser/test_added_setting.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Found = dict[str, Any]
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def found() -> Found:
    command = [sys.executable, "-m", "tests.added_settings"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    result: Found = json.loads(ended.stdout)
    return result


@pytest.mark.parametrize("command", ["play", "serve"])
def test_flags_and_their_help(found: Found, command: str) -> None:
    shown = found["flags"]["help"][command]
    assert "--zeal, --no-zeal Whether it tries hard. (default: on)" in shown
    assert "--patience STEPS How long it waits. (default: 3)" in shown
    assert "--haste" not in shown


def test_values_and_errors_of_flags(found: Found) -> None:
    assert found["flags"]["values"] == [5, False]
    assert "patience is 10: use an integer from 1 to 9" in found["flags"]["refused"]


def test_the_control_and_what_the_pages_scripts_get(found: Found) -> None:
    page = found["page"]
    assert page["control"] == ["Patience", "mood", 3]
    assert page["order"].index("max_batch_size") < page["order"].index("patience") < page["order"].index("prefix_cache")
    knob, engine = page["given"]
    assert knob == {
        "kind": "whole", "least": 1, "most": 9, "label": "Patience", "short": "calm", "hint": "mood", "unit": "steps",
        "help": "How long it waits.", "control": "patience", "compared": "row", "default": 3,
        "watch": "**TTFT** rises.", "costs": "Time.", "nearest": "--max-wait-s",
    }  # fmt: skip
    assert (engine["kind"], engine["compared"], engine["default"]) == ("switch", "row", True)


def test_the_endpoint(found: Found) -> None:
    page = found["page"]
    assert "patience: an integer from 1 to 9, in steps; 3 by default. How long it waits." in page["endpoint"]
    assert page["changed"] == 7
    assert page["refused"] == "patience is 0: use an integer from 1 to 9"


def test_a_sampling_parameter(found: Found) -> None:
    sampling = found["sampling"]
    assert sampling["control"] == ["Flair", "style", 0.5, 4, 0.5]
    assert sampling["given"] == {
        "kind": "number", "least": 0, "most": 4, "above": False, "label": "Flair", "short": "flair", "hint": "style", "compared": "row",
        "help": "How florid it is.", "control": "sampling-flair", "slider": [0, 4, 0.5], "recommended": True,
    }  # fmt: skip
    assert sampling["changed"] == [2.5, "tab", {}]
    assert sampling["refused"] == {"flair": "flair is 9: use a number from 0 to 4"}
    assert sampling["answer"] == 2.5
    assert sampling["endpoints"] == [True, True]
    assert sampling["api"] == [1.0, 3.0], "what is sent, else what the model's author recommends"
    assert sampling["schema"] == 0.5
    assert sampling["api refuses"] == ["flair", "flair is 7.0: use a number from 0 to 4"]
    assert sampling["recorded"]


def test_recordings_with_it_and_from_before(found: Found) -> None:
    assert found["recording"]["own"] == 8
    assert found["recording"]["demo"] == 3
    assert "knobs, patience should be a whole number" in found["recording"]["refused"]


def test_the_documents(found: Found) -> None:
    settings, endpoints, api = found["docs"]
    assert "| `flair` | 0.5 | a number from 0 to 4 | How florid it is. | `flair` |" in settings
    assert "| `flair` | a number from 0 to 4 | 0.5 | 0.5 |" in endpoints
    assert "`repetition_penalty`, `flair` |" in api
    assert (
        "| `patience` | 3 | an integer from 1 to 9, in steps | How long it waits. Watch: TTFT rises. Costs: Time. |  |"
        in settings
    )
    assert "| `zeal` | on | true or false | Whether it tries hard. |  |" in settings
