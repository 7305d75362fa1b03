"""Turns prompts and sampling parameters into request bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.config import API_FIELDS, SamplingParams
from roseplay.extras.servers.dialects import ALWAYS, Dialect
from roseplay.settings import defaults_of

# Log-probabilities are refused, and structured outputs are worded for each kind of server.
_APART = ("logprobs", "prompt_logprobs", "structured_outputs")


def request_of(prompt: Any, params: SamplingParams, model: str, dialect: Dialect) -> tuple[str, dict[str, object]]:
    """Returns the path below ``/v1`` and the body of a request: a chat for messages, else a completion.

    Raises:
        ValueError: the prompt is empty or of another kind, or what is asked for cannot be had from such a server.
    """
    if params.logprobs is not None or params.prompt_logprobs is not None:
        raise ValueError("log-probabilities are not read over HTTP: leave logprobs and prompt_logprobs out")
    path, about = _prompt_fields(prompt)
    return path, {"model": model, **about, **_sampling_fields(params, dialect), "stream": True}


def _prompt_fields(prompt: Any) -> tuple[str, dict[str, object]]:
    if isinstance(prompt, str | Sequence) and not prompt:
        raise ValueError("the prompt is empty: give at least one token")
    if isinstance(prompt, str):
        return "/completions", {"prompt": prompt}
    if isinstance(prompt, Sequence) and all(isinstance(message, Mapping) for message in prompt):
        return "/chat/completions", {"messages": [dict(message) for message in prompt]}
    if isinstance(prompt, Sequence) and all(isinstance(token, int) and token is not True for token in prompt):
        return "/completions", {"prompt": [int(token) for token in prompt]}
    raise ValueError(f"a prompt is text, chat messages or token ids, not {type(prompt).__name__}")


def _sampling_fields(params: SamplingParams, dialect: Dialect) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, default in defaults_of(SamplingParams).items():
        value = getattr(params, name)
        if value == default and name not in ALWAYS:
            value = dialect.neutral.get(name)
        if value is not None and name not in _APART:
            field = dialect.renamed.get(name, API_FIELDS[name])
            fields[field] = list(value) if isinstance(value, tuple) else value
    if params.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    if params.structured_outputs is not None:
        fields |= _structure(json.loads(params.structured_outputs), dialect)
    return fields


def _structure(structure: Mapping[str, Any], dialect: Dialect) -> dict[str, object]:
    if dialect.structures:
        return {"structured_outputs": structure}
    if "json" not in structure:
        raise ValueError(f"structured_outputs: {dialect.title} is sent JSON schemas only, give json or leave it out")
    schema = json.loads(structure["json"]) if isinstance(structure["json"], str) else structure["json"]
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
