"""Shared by all tests: no network, no telemetry sent, and a prominent warning when there is no Chromium."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

# Set before anything imports these libraries, so that tests access nothing outside.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Run Triton's kernels on the CPU, in its interpreter. Triton reads this once, on import. Set 0 to use a CUDA device.
os.environ.setdefault("TRITON_INTERPRET", "1")
# The models here are too small to benefit from two threads, which on a busy machine wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests import chromium
from tests.hub import Hub

# Imports create many objects that stay: collections would cost a third of the time that importing and collecting takes.
gc.disable()

with contextlib.suppress(ImportError):  # may be missing on a machine with a GPU
    from hypothesis import settings

    settings.register_profile("roseplay", deadline=None)  # per-example time limits fail on a busy machine
    settings.load_profile("roseplay")

pytest_plugins = ("tests.browsers", "tests.pages")

NO_CHROMIUM = "no Chromium: install chromium, run `playwright install chromium`, or set ROSEPLAY_CHROMIUM"
_REPOSITORY = Path(__file__).resolve().parent.parent
_browser = pytest.StashKey[str | None]()
_skipped = pytest.StashKey[int]()


def _on_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Accept the ini option ``timeout`` without pytest-timeout, which a machine with a GPU may lack."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds of a test (needs pytest-timeout)")


def _turn(item: pytest.Item) -> tuple[int, int, str]:
    """Where a test comes: its file's part of the run, and for browser tests, the larger files first, so that none of
    these runs alone at the end.
    """
    if (_REPOSITORY / "tests" / "suites" / "faults") in item.path.parents:
        return 0, 0, ""
    return (2, -item.path.stat().st_size, item.path.name) if item.get_closest_marker("browser") else (1, 0, "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything in folders called browser; without a Chromium, skip these tests, or fail them if CI=true."""
    for item in items:
        if "browser" in item.path.relative_to(_REPOSITORY).parts[:-1]:
            item.add_marker("browser")
    # Tests of faults need a process without other engines, and servers of browser tests run until all tests have ended.
    items.sort(key=_turn)
    wanted = [item for item in items if item.get_closest_marker("browser")]
    if not wanted:
        return
    config.stash[_browser] = chromium.find()
    if config.stash[_browser] is None and not _on_ci():
        config.stash[_skipped] = len(wanted)
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.scheduling import PagesOnCores

    return PagesOnCores(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exempt what was imported from garbage collections, which would otherwise take a quarter of a second each."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and item.config.stash.get(_browser, None) is None:
        pytest.fail(f"{NO_CHROMIUM} (CI=true makes this a failure)", pytrace=False)
    if item.get_closest_marker("hypothesis"):
        gc.collect()  # Hypothesis turns warnings into errors, even those about sockets that earlier tests left open


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash.get(_skipped, 0)
    if skipped:
        terminalreporter.section("BROWSER TESTS WERE SKIPPED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{skipped} tests in a browser did not run. {NO_CHROMIUM}.", red=True)


@pytest.fixture(scope="session")
def chromium_path(request: pytest.FixtureRequest) -> str:
    """Path of the Chromium to start, for ``playwright.chromium.launch(executable_path=...)``."""
    path = request.config.stash.get(_browser, None) or chromium.find()
    if path is None:
        pytest.fail(NO_CHROMIUM, pytrace=False)
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The cache of the Hugging Face hub, as this process finds it: an empty one."""
    from huggingface_hub import constants

    made = Hub(tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(made.path))
    return made


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """A model in memory, with 97 tokens and a context of 64."""
    from tests.model.families import FAMILIES, tiny_model

    return tiny_model(FAMILIES["llama"]())


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return _REPOSITORY
