"""Turns API requests into engine requests: prompts, sampling parameters, one stream for each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from roseplay.config import API_FIELDS, SamplingParams
from roseplay.core.budget import RequestTooLargeError
from roseplay.engine.engine_like import EngineLike
from roseplay.engine.prompts import encode_bad_words, encode_prompt, template_has
from roseplay.engine.stream import Stream
from roseplay.serve import bodies
from roseplay.serve.errors import ApiError, under_their_name
from roseplay.serve.prompt_text import PromptText, prompt_text
from roseplay.settings import SettingError

# Parameters that are variables of chat templates, and their values that ask for nothing.
_VARIABLES = {"reasoning_effort": None, "verbosity": "medium"}
_MOST_IN_JSON = 2**53 - 1  # tokenizers without a limit have 10**30


class Prepared(NamedTuple):
    """A checked request for one answer, as ``Engine.submit`` takes it."""

    token_ids: list[int]
    params: SamplingParams


def prepare(engine: EngineLike, body: bodies.CompletionBody | bodies.ChatBody) -> list[Prepared]:
    """Returns the requests for all answers to ``body``, whose grammar is not checked; raises ``ApiError``."""
    return prepare_chat(engine, body) if isinstance(body, bodies.ChatBody) else prepare_completion(engine, body)


def prepare_completion(engine: EngineLike, body: bodies.CompletionBody) -> list[Prepared]:
    """Returns ``n`` requests for each prompt, prompt by prompt. Raises ``ApiError`` if a field is wrong."""
    prompts = body.prompts
    if not prompts:
        raise ApiError(400, "prompt is empty: send text or token ids", param="prompt")
    if len(prompts) * body.n > bodies.MOST_ANSWERS:
        raise ApiError(
            400, f"that is {len(prompts)} prompts times n = {body.n}: send at most {bodies.MOST_ANSWERS}", param="n"
        )
    options = {"add_special_tokens": body.add_special_tokens}
    token_ids = [_encoded(engine, prompt, "prompt", options) for prompt in prompts]
    most = 1 if body.prompt_only else body.max_tokens  # the engine samples at least one token
    return _prepare(engine, body, token_ids, most, body.logprobs, body.logprobs if body.echo else None)


def prepare_chat(engine: EngineLike, body: bodies.ChatBody) -> list[Prepared]:
    """Returns ``n`` requests for each chat; raises the errors of ``prepare_completion``."""
    if body.kv_transfer_params is not None:  # another server has read the messages
        token_ids = [_encoded(engine, body.kv_transfer_params.prompt_token_ids, "kv_transfer_params.prompt_token_ids")]
    else:
        token_ids = [_encode_chat(engine, body, messages) for messages in body.chats]
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _prepare(engine, body, token_ids, getattr(body, body.limit), logprobs, None)


def _encode_chat(engine: EngineLike, body: bodies.ChatPrompt, messages: Sequence[bodies.Message]) -> list[int]:
    """Returns the token ids of a chat. Raises ``ApiError`` if a field is wrong."""
    options = {**_template_options(engine.tokenizer, body), "add_special_tokens": body.add_special_tokens}
    return _encoded(engine, [message.as_prompt() for message in messages], "messages", options)


def tokenize(engine: EngineLike, body: bodies.CountedChat | bodies.CountedText) -> dict[str, object]:
    """Returns the token ids of a chat or a text, as vLLM does. Raises ``ApiError`` if a field is wrong."""
    if isinstance(body, bodies.CountedChat):
        tokens = _encode_chat(engine, body, body.messages)
    else:
        tokens = _encoded(engine, body.prompt, "prompt", {"add_special_tokens": body.add_special_tokens})
    names = engine.tokenizer.convert_ids_to_tokens(tokens) if body.return_token_strs else None
    return {"count": len(tokens), "max_model_len": engine.info.max_model_len, "tokens": tokens, "token_strs": names}


def tokenizer_info(engine: EngineLike) -> dict[str, object]:
    """Returns the tokenizer's class, chat template and tokens with names, as vLLM does. Raises ``ApiError`` without one."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise ApiError(404, "this model has no tokenizer")
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "model_max_length": int(min(tokenizer.model_max_length, _MOST_IN_JSON)),
        **tokenizer.special_tokens_map,
        "chat_template": getattr(tokenizer, "chat_template", None),
        "added_tokens_decoder": {
            str(token): {"content": told.content, "special": told.special} for token, told in added.items()
        },
    }


def detokenize(engine: EngineLike, body: bodies.DetokenizeBody) -> dict[str, str]:
    """Returns the text of token ids, as vLLM does. Raises ``ApiError`` if the model has no such tokens."""
    if engine.tokenizer is None:
        raise ApiError(400, "this model has no tokenizer: its tokens have no text", param="tokens")
    return {"prompt": engine.tokenizer.decode(_encoded(engine, body.tokens, "tokens"))}


def repeated_texts(
    engine: EngineLike, body: bodies.CompletionBody | bodies.ChatBody, requests: Sequence[Prepared]
) -> list[PromptText]:
    """Returns the text that the answers to each prompt begin with, if ``echo`` asks for that: the prompt or, in a chat, the
    message that is continued.
    """
    if not body.echo:
        return []
    if isinstance(body, bodies.ChatBody):
        return [PromptText(text, []) for text in body.repeated]
    token_ids = [request.token_ids for request in requests[:: body.n]]
    prompts = body.prompts if body.truncate_prompt_tokens is None else token_ids
    return [prompt_text(*of_one, engine.tokenizer) for of_one in zip(prompts, token_ids, strict=True)]


def submit_all(engine: EngineLike, requests: Sequence[Prepared], answers_each: int) -> list[Stream]:
    """Enqueue requests, of which ``answers_each`` in a row have the same prompt.

    Raises:
        EngineBusyError: too many requests wait; those already enqueued are aborted. EngineError: the engine has failed.
    """
    streams: list[Stream] = []
    try:
        for number, (token_ids, params) in enumerate(requests):
            streams.append(engine.submit(token_ids, params))
            streams[-1].metrics.answers = None if number % answers_each else answers_each
    except BaseException:
        cancel_all(streams)
        raise
    return streams


def cancel_all(streams: Sequence[Stream]) -> None:
    """Abort the requests that have not ended."""
    for stream in streams:
        stream.cancel()


def _encoded(engine: EngineLike, prompt: str | Sequence[Any], param: str, options: Mapping[str, Any] = {}) -> list[int]:
    try:
        return encode_prompt(prompt, engine.tokenizer, engine.info.vocab_size, options)
    except (ValueError, RecursionError) as error:  # the latter of deeply nested arguments and variables
        raise ApiError(400, str(error), param=param) from None


def _template_options(tokenizer: Any, body: bodies.ChatPrompt) -> dict[str, Any]:
    """Returns what a chat asks of the model's chat template; raises ``ApiError`` for what that does not have."""
    options: dict[str, Any] = {}
    if body.continue_final_message:
        options = {"continue_final_message": True, "add_generation_prompt": False}
    elif not body.add_generation_prompt:
        options = {"add_generation_prompt": False}
    variables = [(f"chat_template_kwargs.{name}", name, value) for name, value in body.chat_template_kwargs.items()]
    variables += [(name, name, getattr(body, name)) for name in _VARIABLES]
    for param, name, value in variables:
        if value is not None and template_has(tokenizer, name):
            options[name] = value
        elif value not in (None, False, _VARIABLES.get(name)):
            why = "the model's chat template does not take it from requests"
            raise ApiError(400, f"{param} is not supported: {why}", param=param)
    return options


def _check_log_probabilities(tokens: int, n: int, likeliest: int) -> None:
    """Raises ``ApiError`` for too many log-probabilities: a prompt's are computed and written for each answer."""
    each = 1 + likeliest
    if tokens * n * each > bodies.MOST_PROMPT_LOGPROBS:
        raise ApiError(
            400,
            f"log-probabilities of prompts: {tokens:,} prompt tokens times n = {n} times {each} log-probabilities each ="
            f" {tokens * n * each:,}: send at most {bodies.MOST_PROMPT_LOGPROBS:,}, with shorter or fewer prompts, or lower n or"
            " logprobs",
            param="logprobs",
        )


def _prepare(
    engine: EngineLike,
    body: bodies.Sampling,
    prompts: list[list[int]],
    most: int | None,
    logprobs: int | None,
    repeated: int | None,
) -> list[Prepared]:
    """Returns ``n`` requests for each prompt.

    Args:
        most: most tokens of an answer, None for as many as there is room for.
        repeated: number of log-probabilities that the answer repeats for each token of its prompt; None for none.
    """
    if body.truncate_prompt_tokens is not None:
        prompts = [_truncated(engine, body, token_ids) for token_ids in prompts]
    of_prompt = max((wanted for wanted in (repeated, body.prompt_logprobs) if wanted is not None), default=None)
    if of_prompt is not None:
        _check_log_probabilities(sum(map(len, prompts)), body.n, of_prompt)
    requests = []
    for token_ids in prompts:
        info, recommended = engine.info, engine.info.sampling_defaults
        room = min(info.max_model_len, (info.num_blocks - 1) * info.block_size) - len(token_ids)
        try:
            info.check_fits(len(token_ids), max(1, room) if most is None else most, body.limit)
        except RequestTooLargeError as error:
            param = body.limit if room > 0 and body.limit in body.model_fields_set else body.prompt_field
            raise ApiError(400, str(error), param=param, code="context_length_exceeded") from None
        at_most = min(room, recommended.get("max_new_tokens", room)) if most is None else most
        more = {"max_new_tokens": int(at_most), "logprobs": logprobs, "prompt_logprobs": of_prompt}
        requests += [Prepared(token_ids, _params(body, engine, number, more)) for number in range(body.n)]
    return requests


def _truncated(engine: EngineLike, body: bodies.Sampling, token_ids: list[int]) -> list[int]:
    most = body.truncate_prompt_tokens
    most = engine.info.max_model_len - 1 if most == -1 else most  # an answer has at least one token
    if not most:
        raise ApiError(
            400, "truncate_prompt_tokens leaves no prompt: use at least 1, or -1", param="truncate_prompt_tokens"
        )
    return token_ids[:most] if body.truncation_side == "right" else token_ids[-most:]


def _params(body: bodies.Sampling, engine: EngineLike, number: int, more: Mapping[str, int | None]) -> SamplingParams:
    """Returns the parameters of answer ``number`` to one prompt; recommended ones fill in for missing fields."""
    info, (field, structure) = engine.info, body.structure
    values = {name: getattr(body, field) for name, field in bodies.COMMON.items()}
    missing = bodies.COMMON.keys() - body.model_fields_set
    values |= {name: value for name, value in info.sampling_defaults.items() if name in missing}
    values |= {"structured_outputs": structure, **more}
    if values["seed"] is not None:
        values["seed"] += number
    try:
        params = SamplingParams(**values)
        info.check_params(params)
        encode_bad_words(params.bad_words, engine.tokenizer)
        return params
    except SettingError as error:
        names = {**API_FIELDS, "max_new_tokens": body.limit, "structured_outputs": field}
        raise under_their_name(error, names) from None
