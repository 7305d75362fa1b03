"""Requests of programs as requests of the engine: prompts, sampling parameters, one stream for each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roseplay.config import SamplingParams
from roseplay.engine.prompts import encode_prompt
from roseplay.engine.stream import Stream
from roseplay.serve.bodies import MOST_ANSWERS, ChatBody, CompletionBody, Sampling
from roseplay.serve.errors import ApiError
from roseplay.serve.prompt_text import PromptText, prompt_text

if TYPE_CHECKING:  # a replay is served without the engine
    from roseplay.engine.client import Engine

# The API's names of our sampling parameters, for messages.
_THEIR_NAMES = {"max_new_tokens": "max_tokens"}
# What the model's author may recommend.
_DRAWN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def submit_completion(engine: Engine, body: CompletionBody) -> list[Stream]:
    """Enqueue ``n`` answers to each prompt, one prompt after the other.

    Raises:
        ApiError: a field is wrong. EngineBusyError: too many requests wait; none of these is left behind.
    """
    prompts = body.prompts
    if not prompts:
        raise ApiError(400, "prompt is empty: send text or token ids", param="prompt")
    if len(prompts) * body.n > MOST_ANSWERS:
        raise ApiError(
            400, f"that is {len(prompts)} prompts times n = {body.n}: send at most {MOST_ANSWERS}", param="n"
        )
    token_ids = [_encoded(engine, prompt, "prompt") for prompt in prompts]
    most = 1 if body.prompt_only else body.max_tokens  # the engine draws a token at least
    return _submit(engine, body, token_ids, body.logprobs, most, body.logprobs if body.echo else None)


def prompt_texts(engine: Engine, body: CompletionBody, streams: Sequence[Stream]) -> list[PromptText]:
    """The text of each prompt that was submitted; the requests are aborted if that fails."""
    try:
        token_ids = [stream.prompt_token_ids for stream in streams[:: body.n]]
        return [prompt_text(*of_one, engine.tokenizer) for of_one in zip(body.prompts, token_ids, strict=True)]
    except BaseException:
        cancel_all(streams)
        raise


def submit_chat(engine: Engine, body: ChatBody) -> list[Stream]:
    """Enqueue ``n`` answers to a chat; raises as ``submit_completion``."""
    token_ids = _encoded(engine, [message.as_prompt() for message in body.messages], "messages")
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _submit(engine, body, [token_ids], logprobs, most)


def _encoded(engine: Engine, prompt: str | Sequence[Any], param: str) -> list[int]:
    try:
        return encode_prompt(prompt, engine.tokenizer, engine.info.vocab_size)
    except ValueError as error:
        raise ApiError(400, str(error), param=param) from None


def _submit(
    engine: Engine,
    body: Sampling,
    prompts: list[list[int]],
    logprobs: int | None,
    most: int | None,
    prompt_logprobs: int | None = None,
) -> list[Stream]:
    streams: list[Stream] = []
    try:
        for token_ids in prompts:
            info, recommended = engine.info, engine.info.sampling_defaults
            room = min(info.max_model_len, (info.num_blocks - 1) * info.block_size) - len(token_ids)
            info.check_fits(len(token_ids), max(1, room) if most is None else most)
            for number in range(body.n):
                at_most = min(room, recommended.get("max_new_tokens", room)) if most is None else most
                params = _params(body, recommended, number, logprobs, int(at_most), prompt_logprobs)
                streams.append(engine.submit(token_ids, params))
    except BaseException:
        cancel_all(streams)
        raise
    return streams


def cancel_all(streams: Sequence[Stream]) -> None:
    """Abort the requests that have not ended."""
    for stream in streams:
        stream.cancel()


def _params(
    body: Sampling,
    recommended: Mapping[str, float | int],
    number: int,
    logprobs: int | None,
    most: int,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The parameters of the answer ``number`` to one prompt; what the body does not say is what is ``recommended``."""
    drawn = {name: getattr(body, name) for name in _DRAWN}
    drawn.update({name: value for name, value in recommended.items() if name in drawn.keys() - body.model_fields_set})
    given: Mapping[str, Any] = {
        "max_new_tokens": most,
        **drawn,
        "top_k": drawn["top_k"] if drawn["top_k"] > 0 else None,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "seed": None if body.seed is None else body.seed + number,
        "stop": body.stop,
        "stop_token_ids": body.stop_token_ids,
        "ignore_eos": body.ignore_eos,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
    }
    try:
        return SamplingParams(**given)
    except ValueError as error:
        message = str(error)
        ours = next((name for name in given if message.startswith(name)), None)
        theirs = _THEIR_NAMES.get(ours or "", ours)
        raise ApiError(400, message.replace(ours or "", theirs or "", 1), param=theirs) from None
