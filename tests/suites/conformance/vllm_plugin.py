"""A pytest plugin: vLLM's own API tests, from its source package, against a server that runs already.

It replaces what those tests have to do with a model of their own: the server that they start, by ``VLLM_TESTS_URL``; the
tokenizer that they load, by that of ``VLLM_TESTS_MODEL``; and what they download. vLLM need not be installed: whatever else
they import of it is a mock, and tests that do not use a server are left out.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import openai
import pytest
import transformers

URL = os.environ["VLLM_TESTS_URL"]
_FIXTURES = {"client", "server", "server_fixture"}
_OURS = ("tests.conftest", "tests.utils", "tests.entrypoints.openai.chat_completion.test_serving_chat")
_KEY = "none"


class RemoteOpenAIServer:
    """The server under test, in place of one that would be started with a model and flags."""

    DUMMY_API_KEY = _KEY
    show_hidden_metrics = False

    def __init__(self, model: str, args: Sequence[str], **options: Any) -> None:
        self.url_root = URL

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join([URL, *(part.strip("/") for part in parts)])

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._options(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"base_url": self.url_for("v1"), "api_key": _KEY, "max_retries": 0, "timeout": 600, **options}


def _tokenizer(*_: Any, **__: Any) -> Any:
    from roseplay.config import EngineConfig
    from roseplay.model.tokenizer import load_tokenizer

    return load_tokenizer(os.environ["VLLM_TESTS_MODEL"], EngineConfig())


class _ModelConfig(MagicMock):
    def get_vocab_size(self) -> int:
        return len(_tokenizer())


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


class _Mocked(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NAMED.get(self.__name__, {}).get(name) or _NAMED.get(f"{self.__name__}.{name}") or MagicMock(name=name)


class _Mocks(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_mocked = name in _OURS or name.partition(".")[0] == "vllm"
        return ModuleSpec(name, self, is_package=True) if is_mocked else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Mocked(spec.name)
        vars(module).update(_NAMED.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Mocks())
transformers.AutoTokenizer.from_pretrained = _tokenizer


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that use no server."""

    def uses_server(item: Any) -> bool:
        return not _FIXTURES.isdisjoint(item.fixturenames) or "RemoteOpenAIServer(" in inspect.getsource(item.function)

    config.hook.pytest_deselected(items=[item for item in items if not uses_server(item)])
    items[:] = [item for item in items if uses_server(item)]
