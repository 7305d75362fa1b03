"""The types that the page's scripts are checked against have the fields of the server's schema."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from roseplay.play.web.assets import STATIC
from roseplay.recording.schema import FRAME, HEADER

TYPES = (STATIC / "shared" / "types.js").read_text(encoding="utf-8")
SNAPSHOT = HEADER["fields"]["snapshot"]
OBJECTS: dict[str, dict[str, Any]] = {"Frame": FRAME, "DemoCaption": FRAME["fields"]["demo"]}
ROWS: dict[str, dict[str, Any]] = {
    "BlockRow": FRAME["fields"]["blocks"]["of"],
    "StateRow": FRAME["fields"]["states"]["of"],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_the_fields_of_its_schema(name: str) -> None:
    (body,) = re.findall(rf"@typedef {{object}} {name}\b(.*?)\*/", TYPES, re.S)
    fields = re.findall(r"@property \{.*\} \[?(\w+)\]?", body)
    assert sorted(fields) == sorted(OBJECTS[name]["fields"])


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_columns_of_its_schema(name: str) -> None:
    (columns,) = re.findall(rf"@typedef \{{\[([^\]]*)\]\}} {name}\b", TYPES)
    assert re.findall(r"(\w+)\??:", columns) == list(ROWS[name]["columns"])
    assert len(re.findall(r"\?:", columns)) == ROWS[name]["missing"]


def test_a_snapshot_has_the_fields_of_a_recording_s_and_of_its_header() -> None:
    (body,) = re.findall(r"@typedef {object} Snapshot\b(.*?)\*/", TYPES, re.S)
    fields = set(re.findall(r"@property \{.*\} \[?(\w+)\]?", body))
    assert fields == {*SNAPSHOT["fields"], "info", "knobs", "columns", "story", "demo", "pace"}, (
        "the last three are live"
    )


def test_records_are_as_the_engine_declares_them() -> None:
    """``python docs/records.py`` writes them again."""
    made = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "records.py"))
    assert made["SCRIPT"].read_text(encoding="utf-8") == made["script"]()
