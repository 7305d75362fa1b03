"""The settings with which vLLM was started, as its development mode reports them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from roseplay.extras.servers.sentences import Document
from roseplay.extras.servers.shapes import Maybe, Name
from roseplay.formats.json_schema import FAR

SERVER_INFO_PATH = "/server_info?config_format=json"
# By section; all names differ.
_REPORTED = {
    "model_config": ("dtype", "quantization", "max_model_len", "enforce_eager"),
    "scheduler_config": ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold",
                         "enable_chunked_prefill", "policy", "async_scheduling"),
    "cache_config": ("enable_prefix_caching", "cache_dtype", "gpu_memory_utilization"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    "speculative_config": ("method", "num_speculative_tokens"),
    "device_config": ("device",),
}  # fmt: skip
_Flag = Annotated[bool, Field(strict=True)]
_Whole = Annotated[int, Field(strict=True, ge=-FAR, le=FAR)]
_Number = Annotated[float, Field(strict=True, ge=-FAR, le=FAR)]
_Value = Maybe[_Flag | _Whole | _Number | Name]
_VALUE: TypeAdapter[Any] = TypeAdapter(_Value)


class _ServerInfo(BaseModel):
    vllm_config: Maybe[dict[str, Maybe[dict[str, Any]]]] = None


def settings_in(document: Document) -> dict[str, bool | int | float | str]:
    """Returns settings by vLLM's names from a reply at ``SERVER_INFO_PATH``; those that cannot be read are left out."""
    sections = _ServerInfo.model_validate(document).vllm_config or {}
    reported = {
        name: _VALUE.validate_python((sections.get(section) or {}).get(name))
        for section, names in _REPORTED.items()
        for name in names
    }
    return {name: value for name, value in reported.items() if value is not None}
