"""Turns prompts and sampling parameters into request bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.config import SamplingParams
from roseplay.remote.dialects import Dialect
from roseplay.settings import defaults_of

# OpenAI's fields, by our names; always sent, since a server's defaults may differ from ours.
_ALWAYS = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p"}
_IF_ASKED = (
    *("presence_penalty", "frequency_penalty", "seed", "stop"),
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "priority", "tenant"),
)
_RENAMED = {"tenant": "user"}


def request_of(prompt: Any, params: SamplingParams, model: str, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """Returns the path below ``/v1`` and the body of a request: a chat for messages, else a completion.

    Raises:
        ValueError: the prompt is empty or of another kind, or what is asked for cannot be had from such a server.
    """
    if params.logprobs is not None or params.prompt_logprobs is not None:
        raise ValueError("log-probabilities are not read over HTTP: leave logprobs and prompt_logprobs out")
    path, about = _prompt_fields(prompt)
    return path, {"model": model, **about, **_sampling_fields(params, dialect), "stream": True}


def _prompt_fields(prompt: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(prompt, str | Sequence) and not prompt:
        raise ValueError("the prompt is empty: give at least one token")
    if isinstance(prompt, str):
        return "/completions", {"prompt": prompt}
    if isinstance(prompt, Sequence) and all(isinstance(message, Mapping) for message in prompt):
        return "/chat/completions", {"messages": [dict(message) for message in prompt]}
    if isinstance(prompt, Sequence) and all(isinstance(token, int) and token is not True for token in prompt):
        return "/completions", {"prompt": [int(token) for token in prompt]}
    raise ValueError(f"a prompt is text, chat messages or token ids, not {type(prompt).__name__}")


def _sampling_fields(params: SamplingParams, dialect: Dialect) -> dict[str, Any]:
    fields = {theirs: getattr(params, ours) for ours, theirs in _ALWAYS.items()}
    defaults = defaults_of(SamplingParams)
    for name in _IF_ASKED:
        value = getattr(params, name)
        if value == defaults[name]:
            value = dialect.neutral.get(name)
        if value is not None:
            fields[dialect.renamed.get(name) or _RENAMED.get(name, name)] = (
                list(value) if isinstance(value, tuple) else value
            )
    if params.structured_outputs is not None:
        fields |= _structure(json.loads(params.structured_outputs), dialect)
    return fields


def _structure(structure: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if dialect.structures:
        return {"structured_outputs": structure}
    if "json" not in structure:
        raise ValueError(f"structured_outputs: {dialect.title} is sent JSON schemas only, give json or leave it out")
    schema = json.loads(structure["json"]) if isinstance(structure["json"], str) else structure["json"]
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
