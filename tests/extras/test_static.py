"""The scripts of the page and of all extensions together."""

from __future__ import annotations

import re

from tests.play.static.test_static import EXPORTS, OURS, imports


def test_every_export_is_used() -> None:
    used: dict[str, set[str]] = {name: set() for name in EXPORTS}
    for name in EXPORTS:
        for module, names in imports(name).items():
            used[module] |= set(names)
    unused = {(name, one) for name in EXPORTS for one in EXPORTS[name] - used[name]}
    others = [*(OURS / "roseplay").rglob("*.py"), *(OURS / "tests").rglob("*.py"), *(OURS / "tests").rglob("*.js")]
    elsewhere = "".join(path.read_text(encoding="utf-8") for path in others)
    mentioned = set(re.findall(rf"\b(?:{'|'.join(one for _, one in unused)})\b", elsewhere))
    assert {(name, one) for name, one in unused if one not in mentioned} == set()
