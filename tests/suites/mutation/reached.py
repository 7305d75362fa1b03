"""A pytest plugin for ``make mutate`` that records which tests reach a function through a shared fixture.

mutmut records what is reached while a test is set up and runs, so a server that is started once would count only for
its first test. The tests of one file run together, so that what they share is started once for each mutant.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from mutmut.state import state

# What an engine imports late. mutmut forks a process for each mutant once tests are collected, so it then has these.
LATE = (
    "roseplay.kernels.cpu.accelerator",
    "roseplay.model.loader",
    "roseplay.model.runner",
    "transformers.modeling_utils",
)

_reached = pytest.StashKey[dict[str, set[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_reached] = {}
    for name in LATE:
        importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Iterator[None]:
    """Record what a shared fixture reaches, including through other fixtures."""
    before = set(state()._stats)
    state()._stats.clear()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            request.config.stash[_reached].setdefault(fixturedef.argname, set()).update(state()._stats)
        state()._stats.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield
    for name in getattr(item, "fixturenames", ()):
        state()._stats.update(item.config.stash[_reached].get(name, ()))
