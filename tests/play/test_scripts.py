"""The page's modules, and those of tabs that extensions add, bundled into scripts. The browser tests check what the scripts do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from roseplay.play.tab import Tab
from roseplay.play.web import assets, scripts


@pytest.fixture
def static(tmp_path: Path) -> Path:
    write(tmp_path, "shared/dom.js", "let made = 0;\nexport function make() {\n  return (made += 1);\n}\n")
    write(
        tmp_path,
        "live/itl.js",
        'import {\n  make as build,\n} from "../shared/dom.js";\n\nexport const first = build();\n',
    )
    write(tmp_path, "main.js", 'import "./live/itl.js";\n')
    return tmp_path


@pytest.fixture
def tab(tmp_path_factory: pytest.TempPathFactory) -> Tab:
    """A tab of an extension, of which one script is loaded with the page."""
    folder = tmp_path_factory.mktemp("notes")
    write(folder, "entry.js", 'import { made } from "./made.js";\nexport const entry = made;\n')
    write(folder, "made.js", 'import { make } from "page/shared/dom.js";\nexport const made = make();\n')
    write(folder, "own/plan.js", 'import { first } from "page/live/itl.js";\nexport class Plan {}\n')
    return cast(Tab, SimpleNamespace(name="notes", static=folder, entry="entry.js"))


def write(static: Path, name: str, text: str) -> None:
    (static / name).parent.mkdir(parents=True, exist_ok=True)
    (static / name).write_text(text, encoding="utf-8")


def order(script: str) -> list[str]:
    return re.findall(r'^modules\["(.*)"\] = ', script, re.MULTILINE)


def test_modules_follow_their_imports_and_those_of_a_tab_have_a_script_of_their_own(static: Path, tab: Tab) -> None:
    files = scripts.join(static, [tab])
    page = ["shared/dom.js", "live/itl.js", "main.js"]
    assert order(files["page.js"]) == [*page, "notes/made.js", "notes/entry.js"]
    assert order(files["notes.js"]) == ["notes/own/plan.js"]
    assert "return { Plan };" in files["notes.js"]
    assert 'const { made } = modules["notes/made.js"];' in files["page.js"]
    assert {name for name in scripts.join(static) if name.endswith(".js")} == {"page.js"}
    assert 'make: build,\n} = modules["shared/dom.js"];' in files["page.js"]


def test_source_maps_lead_to_the_modules_lines(static: Path) -> None:
    files = scripts.join(static)
    lines = files["page.js"].splitlines()
    for section in json.loads(files["page.js.map"])["sections"]:
        (name,) = section["map"]["sources"]
        begin, source = section["offset"]["line"], (static / name).read_text(encoding="utf-8").splitlines()
        assert len(section["map"]["mappings"].split(";")) == len(source)
        assert lines[begin - 1].startswith(f'modules["{name}"]')
        if name != "main.js":  # only an empty line of it is left
            assert lines[begin + len(source) - 1] == source[-1].removeprefix("export ")
    assert files["page.js"].endswith("//# sourceMappingURL=page.js.map\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("export default 1;\n", "shared/odd.js cannot be joined with the page's other modules: export default 1;"),
        ('import * as dom from "./dom.js";\n', "cannot be joined"),
        ("export let changing = 1;\n", "cannot be joined"),
        ('import "./odd.js";\n', "shared/odd.js imports itself"),
        ('import "../notes/entry.js";\n', "there is no module notes/entry.js"),
    ],
)
def test_what_cannot_be_joined_is_refused(static: Path, tab: Tab, text: str, said: str) -> None:
    write(static, "shared/odd.js", text)
    with pytest.raises(ValueError, match=re.escape(said)):
        scripts.join(static, [tab])


def test_every_module_is_in_one_of_the_scripts() -> None:
    modules = [name for script, text in scripts.joined().items() if script.endswith(".js") for name in order(text)]
    files = {name for name in assets.files() if name.endswith(".js")}
    assert sorted(modules) == sorted(files - {"boot.js", "shared/types.js"})
