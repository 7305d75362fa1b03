"""The names by which clients may ask for the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from roseplay.engine.client import Engine
from roseplay.serve.errors import ApiError
from roseplay.serve.model_names import ModelNames
from tests.serve.conftest import serving

ROOT = Path(__file__).resolve().parents[2]


def takes(model: Any, name: str, info_model: str = "its-own-name") -> bool:
    try:
        ModelNames().check(SimpleNamespace(model=model, info=SimpleNamespace(model=info_model)), name)  # type: ignore[arg-type]
    except ApiError as error:
        assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
        assert error.message == f"there is no model {name!r} here: use {info_model!r}", "no path is told"
        return False
    return True


def test_a_model_answers_to_every_name_that_selects_it(tmp_path: Path) -> None:
    names = ("smollm2", "SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "its-own-name")
    assert [name for name in names if not takes("smollm2", name)] == []
    hub = "org/name-GGUF"
    assert takes(f"{hub}:Q4_K_M", hub) and takes(f"{hub}/sub/file.gguf", hub) and not takes(f"{hub}:Q4_K_M", "Q4_K_M")
    folder = ROOT / "assets" / "tiny-chat"
    link = tmp_path / "link"
    link.symlink_to(folder)
    for name in (f"{link}", f"{link}/", f"{folder}", "link", "tiny-chat"):
        assert takes(f"{link}/", name), name
    file = tmp_path / "Some-Q8_0.gguf"
    file.write_bytes(b"GGUF")
    for name in (f"{file}", "Some-Q8_0.gguf", "Some-Q8_0"):
        assert takes(f"{file}", name), name
    assert not takes("smollm2", "tiny-chat") and not takes("smollm2", "") and not takes("smollm2", "/")
    assert takes("/on/another/machine", "/on/another/machine") and not takes("/on/another/machine", "machine")
    assert takes(object(), "its-own-name") and not takes(object(), "another")


def test_names_of_the_server_are_listed(engine: Engine) -> None:
    with serving(engine, names=("gpt-main", "gpt-2nd")) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["gpt-main", "gpt-2nd"]
        for name in ("gpt-2nd", "tiny-chat"):
            assert client.models.retrieve(name).id == name
            answer = client.completions.create(model=name, prompt="A", max_tokens=1)
            assert answer.model == name
        with pytest.raises(openai.NotFoundError, match="use 'gpt-main' or 'gpt-2nd'"):
            client.completions.create(model="gpt-3", prompt="A")
        metrics = httpx.get(f"{address}/metrics").text
        assert 'vllm:num_requests_running{engine="0",model_name="gpt-main"}' in metrics
