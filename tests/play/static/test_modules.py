"""The page's modules without a browser: ``deno test`` runs the JavaScript tests beside this file."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from deno import find_deno_bin

from roseplay.core.cache_miss import MissReason
from roseplay.formats.numbers import amount_text, number_text, range_text, ratio_text, slowed_text
from tests.play.static.given import given
from tests.recording.test_hostile import BAD, encoded, recorded

FOLDER = Path(__file__).parent


def recordings() -> dict[str, object]:
    """A recording, and damaged ones by what is wrong with them, each with what the server's reader says of it."""
    bad = {}
    for name, (change, said) in BAD.items():
        lines = recorded()
        change(lines)
        bad[name] = [b"".join(encoded(lines)).decode(), said]
    return {"good": b"".join(encoded(recorded())).decode(), "bad": bad}


def texts() -> dict[str, object]:
    """Texts that both the server and a script have to write."""
    draw = random.Random(7)
    values = [0, 0.004, 0.125, 9.995, 94.25, 99.95, 99.96, 100.5, 1234.5, 8.0, 1e6]
    values += [round(10 ** draw.uniform(-3, 6), draw.choice([0, 1, 2, 4])) for _ in range(400)]
    pairs = [*zip(values, sorted(values), strict=True), (None, None)]
    asked = [*values, None]
    factors = [[1], [5], [2.5], [1, 5], [1, 2, 5], [2, 1000], [1.25]]
    return {
        "values": asked,
        "figures": [number_text(value) for value in asked],
        "ratios": [ratio_text(value) for value in asked],
        "amounts": [amount_text(value, "ms") for value in asked],
        "factors": factors,
        "slowed": [slowed_text(one) for one in factors],
        "pairs": pairs,
        "ranges": [range_text(*pair) for pair in pairs],
        "missReasons": [str(reason) for reason in MissReason],
        "recordings": recordings(),
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the data that a page has when it is opened."""
    path = tmp_path_factory.mktemp("page") / "page.json"
    path.write_text(json.dumps({"given": given(), "written": texts()}), encoding="utf-8")
    return path


def test_modules(page: Path) -> None:
    """All files at once, each in an isolate of its own. Types are checked by ``make lint``."""
    command = [
        find_deno_bin(),
        "test",
        "--no-check",
        "--no-remote",
        f"--allow-read={page}",
        str(FOLDER),
        "--",
        str(page),
    ]
    environment = {**os.environ, "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(re.findall(r"^ok \| (\d+) passed", result.stdout, re.MULTILINE)[0]) > 80
