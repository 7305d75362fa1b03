"""Sampling values recommended by a model's author in ``generation_config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roseplay.config import EngineConfig
from roseplay.model.loader import load_model
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import make_runner


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1}),
        ({"do_sample": False, "temperature": 0.6, "max_new_tokens": 40}, {"temperature": 0.0, "max_new_tokens": 40}),
        ({"do_sample": True, "repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
        ({"do_sample": True, "top_k": 0, "temperature": 0.8}, {"temperature": 0.8}),
        ({"eos_token_id": [2, 5]}, {}),
        (None, {}),
    ],
)  # fmt: skip
def test_what_the_file_says_is_known_of_the_engine(
    checkpoint: Path, tmp_path: Path, given: Any, expected: dict[str, Any]
):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(checkpoint / name)
    if given is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(given))
    loaded = load_model(str(tmp_path), EngineConfig(device="cpu"))
    assert loaded.sampling_defaults == expected
    assert loaded.eos_token_ids == set((given or {}).get("eos_token_id", [2]))


def test_it_can_be_left_alone():
    model = tiny_model(FAMILIES["llama"]())
    model.generation_config.temperature = 0.5
    assert make_runner(model).info().sampling_defaults == {"temperature": 0.5}
    assert make_runner(model, generation_config="none").info().sampling_defaults == {}
