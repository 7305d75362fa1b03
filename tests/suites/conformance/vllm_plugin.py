"""A pytest plugin: vLLM's own API tests, from its source package, against another server.

It replaces what those tests have to do with a model of their own: the command with which they start a server, by
``VLLM_TESTS_SERVE``, to which it adds a port and the context length that the test asks for; the tokenizer that they load, by
that of ``VLLM_TESTS_MODEL``; and what they download. vLLM need not be installed: whatever else they import of it is a mock,
and tests that use no server are left out.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx
import openai
import pytest
import transformers

from roseplay.config import EngineConfig
from roseplay.model.tokenizer import load_tokenizer

# The models of the tests, as whose names the one model is served.
NAMES = (
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen2-1.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "HuggingFaceH4/zephyr-7b-beta",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "facebook/opt-125m",
    "openai-community/gpt2",
)
LONGEST = 8192  # the model's context
START_S = 600
_FIXTURES = {"client", "server", "server_fixture"}
_MOCKED = ("tests.conftest", "tests.utils", "tests.entrypoints.openai.chat_completion.test_serving_chat")
_KEY = "none"
_TOKENIZER = load_tokenizer(os.environ["VLLM_TESTS_MODEL"], EngineConfig())
_PROCESSES: list[subprocess.Popen[bytes]] = []


@cache
def _served(max_model_len: int) -> str:
    """Start a server, unless it runs, and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    length = ["--max-model-len", str(max_model_len)]
    command = [
        *shlex.split(os.environ["VLLM_TESTS_SERVE"]),
        "--port",
        str(port),
        *length,
        "--served-model-name",
        *NAMES,
    ]
    _PROCESSES.append(subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr))
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health").status_code == 200:
                return url
        if _PROCESSES[-1].poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {shlex.join(command)}")


class RemoteOpenAIServer:
    """The server under test, in place of one that would be started with the model and all flags."""

    DUMMY_API_KEY = _KEY
    show_hidden_metrics = False

    def __init__(self, model: str, args: Sequence[str], **options: Any) -> None:
        asked = int(args[args.index("--max-model-len") + 1]) if "--max-model-len" in args else LONGEST
        self.url_root = _served(min(asked, LONGEST))

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts)])

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._options(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": self.url_for("v1"), "api_key": _KEY, "max_retries": 0, "timeout": 600, **options}


def _tokenizer(*_: Any, **__: Any) -> Any:
    return _TOKENIZER


class _ModelConfig:
    def __init__(self, **_: Any) -> None: ...

    def get_vocab_size(self) -> int:
        return len(_TOKENIZER)


_NAMED: dict[str, dict[str, Any]] = {
    "tests.utils": {"RemoteOpenAIServer": RemoteOpenAIServer},
    "vllm.config": {"ModelConfig": _ModelConfig},
    "vllm.envs": {"VLLM_USE_RUST_FRONTEND": False},
    "vllm.model_executor.model_loader.weight_utils": {"download_weights_from_hf": lambda name, **_: name},
    "vllm.tokenizers": {"get_tokenizer": _tokenizer},
    "vllm.transformers_utils.repo_utils": {
        "hf_api": lambda: SimpleNamespace(snapshot_download=lambda repo_id: repo_id)
    },
    "vllm.version": {"__version__": "0.32.0"},
}


class _MockedModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or MagicMock(name=name)


class _Mocks(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_mocked = name in _MOCKED or name.partition(".")[0] in ("pybase64", "vllm")
        return ModuleSpec(name, self, is_package=True) if is_mocked else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _MockedModule(spec.name)
        vars(module).update(_NAMED.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Mocks())
for _name in ("vllm", "vllm.envs"):  # `from vllm import envs` takes an attribute
    __import__(_name)
transformers.AutoTokenizer.from_pretrained = _tokenizer


@pytest.fixture(scope="session")
def local_asset_server() -> None:
    """Serves pictures, which only models that take them need."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that use no server."""

    def uses_server(item: Any) -> bool:
        return not _FIXTURES.isdisjoint(item.fixturenames) or "RemoteOpenAIServer(" in inspect.getsource(item.function)

    config.hook.pytest_deselected(items=[item for item in items if not uses_server(item)])
    items[:] = [item for item in items if uses_server(item)]


def pytest_sessionfinish() -> None:
    """End the servers."""
    for process in _PROCESSES:
        process.terminate()
    for process in _PROCESSES:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
