"""What an engine on a CPU reports about how it computes steps and what makes them slow."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from roseplay import Engine
from roseplay.core.info import Choice, EngineInfo
from roseplay.kernels.cpu.choices import NO_NUMBA
from tests.model.families import FAMILIES, tiny_model

pytest.importorskip("numba", reason="Numba is not installed")


def info(**settings: Any) -> EngineInfo:
    settings = {"num_blocks": 32, "threads": 1, **settings}
    with Engine(tiny_model(FAMILIES["llama"]()), **settings) as engine:
        return engine.info


def chosen(of: EngineInfo) -> dict[str, str]:
    return {choice.part: choice.chosen for choice in of.choices}


def test_nothing_is_slow_on_a_machine_that_has_all() -> None:
    found = info()
    assert found.slow == []
    assert chosen(found)["attention"] == "KV blocks read in place"
    assert chosen(found)["steps"] == "recorded and replayed"


@pytest.mark.parametrize(
    ("settings", "part", "why"),
    [
        ({"pack_weights": False}, "linear layers", "pack_weights is off"),
        ({"fuse_ops": False}, "norms, activations, rotary", "fuse_ops is off"),
        ({"record_steps": False}, "steps", "record_steps is off"),
        ({"attention": "gather"}, "attention", "attention is gather"),
    ],
)
def test_what_a_setting_asked_for_is_not_called_slow(settings: dict[str, Any], part: str, why: str) -> None:
    found = info(**settings)
    assert found.slow == []
    assert next(choice for choice in found.choices if choice.part == part).why == why


def test_a_dtype_without_kernels_is_slow_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = info(dtype="float16")
    (reason,) = found.slow
    assert "no kernels for float16" in reason and "--dtype float32" in reason
    assert caplog.text.count(reason) == 1
    assert chosen(found)["steps"] == "the model's code"


def test_without_numba_every_part_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("roseplay.kernels.cpu.choices.numba", None)
    with caplog.at_level(logging.WARNING):
        found = info(record_steps=False)
    assert found.slow == [NO_NUMBA]
    assert caplog.text.count(NO_NUMBA) == 1


def test_choices_survive_a_recording() -> None:
    before = dataclasses.replace(
        info(), choices=(Choice("steps", "replayed"), Choice("attention", "slowly", "", "why"))
    )
    assert EngineInfo.of(json.loads(json.dumps(dataclasses.asdict(before)))) == before
