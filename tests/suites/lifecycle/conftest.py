from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.suites.lifecycle.processes import Program


@pytest.fixture(scope="session")
def model_directory(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on disk."""
    directory = tmp_path_factory.mktemp("model")
    tiny_llama.save_pretrained(directory)
    return directory


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Starts programs, and removes whatever is left of them after the test."""
    programs: list[Program] = []

    def start(*arguments: str | Path, terminal: int | None = None) -> Program:
        programs.append(Program(*arguments, terminal=terminal))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
