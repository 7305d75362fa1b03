"""The page's modules bundled into two scripts. The browser tests check what the scripts do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from roseplay.play.web import scripts
from roseplay.play.web.assets import STATIC


@pytest.fixture
def static(tmp_path: Path) -> Path:
    write(tmp_path, "shared/dom.js", "let made = 0;\nexport function make() {\n  return (made += 1);\n}\n")
    write(
        tmp_path,
        "live/itl.js",
        'import {\n  make as build,\n} from "../shared/dom.js";\n\nexport const first = build();\n',
    )
    write(tmp_path, "main.js", 'import "./live/itl.js";\n')
    write(tmp_path, "lab/plan.js", 'import { first } from "../live/itl.js";\nexport class Plan {}\n')
    return tmp_path


def write(static: Path, name: str, text: str) -> None:
    (static / name).parent.mkdir(parents=True, exist_ok=True)
    (static / name).write_text(text, encoding="utf-8")


def order(script: str) -> list[str]:
    return re.findall(r'^modules\["(.*)"\] = ', script, re.MULTILINE)


def test_modules_follow_their_imports_and_the_labs_have_a_script_of_their_own(static: Path) -> None:
    files = scripts.join(static)
    assert order(files["page.js"]) == ["shared/dom.js", "live/itl.js", "main.js"]
    assert order(files["lab.js"]) == ["lab/plan.js"]
    assert "return { Plan };" in files["lab.js"]
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
        ('import "../lab/plan.js";\n', "the page imports lab/plan.js, which only the Lab's tab loads"),
    ],
)
def test_what_cannot_be_joined_is_refused(static: Path, text: str, said: str) -> None:
    write(static, "shared/odd.js", text)
    with pytest.raises(ValueError, match=re.escape(said)):
        scripts.join(static)


def test_every_module_of_the_page_is_in_one_of_the_scripts() -> None:
    files = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")}
    both = order(scripts.joined()["page.js"]) + order(scripts.joined()["lab.js"])
    assert sorted(both) == sorted(files - {"boot.js", "shared/types.js"})
