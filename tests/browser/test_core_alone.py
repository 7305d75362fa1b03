"""The page of a roseplay without extensions, installed from a tree that lacks them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.pages import TIMEOUT_MS, Served

NAMED = re.compile(r"\b[Ll]abs?\b|rp-lab|#lab-")
# Goes on with the demo, and says whether it has ended.
ENDED = """() => {
  const [next] = [...document.querySelectorAll("#rp-story button")].filter((one) => one.textContent.startsWith("Next"));
  if (!next?.disabled) next?.click();
  return document.querySelector(".rp-strip").dataset.about !== "demo";
}"""


@pytest.fixture(scope="module")
def program(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``roseplay``, installed with this environment's packages into one of its own."""
    folder = tmp_path_factory.mktemp("alone")
    tree, environment = folder / "tree", folder / "venv"
    shutil.copytree(repository / "roseplay", tree / "roseplay", ignore=shutil.ignore_patterns("__pycache__", "extras"))
    shutil.copytree(repository / "assets", tree / "assets")
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.txt"):
        shutil.copy(repository / name, tree)
    venv.create(environment)
    scheme = sysconfig.get_preferred_scheme("prefix")
    paths = {
        kind: Path(sysconfig.get_path(kind, scheme, {"base": str(environment)})) for kind in ("purelib", "scripts")
    }
    (paths["purelib"] / "packages.pth").write_text(sysconfig.get_path("purelib"))
    install = ["-m", "pip", "--python", str(environment), "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, *install, "--no-index", "--no-compile", str(tree)], check=True, timeout=120)
    return paths["scripts"] / "roseplay"


@pytest.fixture(scope="module")
def address(program: Path) -> Iterator[str]:
    # Its kernels would be compiled anew, and another process would load torch once more.
    plain = "--worker thread --attention gather --no-pack-weights --no-fuse-ops --no-record-steps".split()
    command = [str(program), "play", "--model", "tiny-chat", "--port", "0", "--view", "full", *plain]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(command, cwd=program.parent, env=alone, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next((found for line in process.stdout if (found := re.search(r"http://[\d.:]+", line))), None)
            assert found, "it ended before the page was there"
            yield found.group()
        finally:
            process.terminate()


def test_it_plays_its_demo_and_names_no_extension(address: str, open_page: Callable[..., Page]) -> None:
    page = open_page(Served(address, None))
    assert page.get_by_role("tab").all_inner_texts() == ["Live", "Traces"]
    page.keyboard.press("d")
    expect(page.locator(".rp-strip")).to_have_attribute("data-about", "demo")
    page.wait_for_function(ENDED, polling=500, timeout=TIMEOUT_MS)
    assert page.evaluate("Rose.store.bursts.size") >= 2
    html = httpx.get(address, timeout=60).text
    (script,) = {*re.findall(r"/ui/static/\w+/page\.js", html)}
    for text in (html, httpx.get(address + script, timeout=60).text, page.locator("body").inner_text()):
        assert NAMED.findall(text) == []
