"""The probes of a server, each of which checks one feature."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import httpx

from roseplay.extras.servers.check.server import Server
from roseplay.extras.servers.control import Reply
from roseplay.extras.servers.dialects import DIALECTS
from roseplay.extras.servers.load import load_names, read_load
from roseplay.extras.servers.sentences import Document, sentence_in, with_text

Found = Literal["yes", "no", "partly", "unknown"]
LEAVES_WITHIN_S = 3.0
_LONG = "Tell me all about caches, blocks and batches. " * 12


@dataclass(frozen=True, slots=True)
class Finding:
    """A probe's result; ``detail`` says in a few words what the server did."""

    found: Found
    detail: str = ""


Probe = Callable[[Server], Finding]
Look = Callable[[Document], Finding]
PROBES: dict[str, Probe] = {}  # by feature, in the order in which they run
NEEDED = ("chats", "streams")  # without these, nothing else can be checked


def findings(server: Server) -> Iterator[tuple[str, Finding]]:
    """Run all probes in sequence; yields each feature's name and result."""
    for name, probe in PROBES.items():
        try:
            yield name, probe(server)
        except httpx.TimeoutException:
            yield name, Finding("no", "no answer in time")
        except (httpx.HTTPError, ValueError) as error:
            yield name, Finding("no", f"{type(error).__name__}: {error}".splitlines()[0])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            yield name, Finding("no", f"the answer has another shape ({type(error).__name__}: {error})")


def _probe(name: str) -> Callable[[Probe], Probe]:
    """Registers a function as the probe of a feature."""
    return partial(PROBES.setdefault, name)


def _of_answer(name: str, ask: Callable[[Server], Reply]) -> Callable[[Look], Look]:
    """Registers a function that looks at the answer to one request as the probe of a feature."""

    def register(look: Look) -> Look:
        PROBES[name] = lambda server: _of_reply(ask(server), look)
        return look

    return register


def _of_reply(reply: Reply, look: Look) -> Finding:
    return look(reply.document or {}) if _answers(reply) else Finding("no", _refusal(reply))


def _answers(reply: Reply) -> bool:
    return reply.status == 200 and reply.document is not None


def _refusal(reply: Reply) -> str:
    """Returns the status with the server's reason, if it gives one."""
    reason = sentence_in(reply.document)
    return f"{reply.status}: {reason}" if reason else with_text(f"status {reply.status}", reply.content)


def _yes_if(condition: object, detail: str = "", otherwise: str = "") -> Finding:
    return Finding("yes", detail) if condition else Finding("no", otherwise)


# -- answers


@_of_answer("chats", lambda server: server.chat())
def _chats(body: Document) -> Finding:
    return _yes_if(body["choices"][0]["message"]["content"] is not None)


@_of_answer("completions", lambda server: server.complete())
def _completions(body: Document) -> Finding:
    return _yes_if("text" in body["choices"][0])


@_probe("streams")
def _streams(server: Server) -> Finding:
    events = server.stream_chat(max_tokens=24)
    if events.status != 200 or not events.chunks:
        return Finding("no", f"status {events.status}")
    gaps = [later - sooner for sooner, later in zip(events.times_s, events.times_s[1:], strict=False)]
    if len(gaps) > 2 and max(events.times_s) - min(events.times_s) < 1e-3:
        return Finding("partly", "all events arrive at once: something in between buffers them")
    first = f"first event after {events.times_s[0] * 1e3:.0f} ms, {len(events.chunks)} events"
    return Finding("yes", first) if events.done else Finding("partly", f"{first}, but no [DONE]")


@_of_answer("finish_reason", lambda server: server.chat(_LONG, max_tokens=2))
def _finish_reason(body: Document) -> Finding:
    reason = body["choices"][0]["finish_reason"]
    return _yes_if(reason == "length", otherwise=f"{reason!r} where the limit of tokens was reached")


# -- usage


@_of_answer("usage", lambda server: server.chat())
def _usage(body: Document) -> Finding:
    usage = body["usage"]
    whole = usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    return _yes_if(whole, otherwise=f"{usage['total_tokens']} total tokens are not prompt plus completion")


@_probe("usage of streams")
def _usage_of_streams(server: Server) -> Finding:
    events = server.stream_chat(stream_options={"include_usage": True})
    if events.status != 200:
        return Finding("no", f"status {events.status}")
    return _yes_if(any(chunk.get("usage") for chunk in events.chunks[-1:]), otherwise="the last chunk has none")


@_of_answer("cached tokens", lambda server: (server.chat(_LONG), server.chat(_LONG))[1])
def _cached_tokens(body: Document) -> Finding:
    details = body["usage"].get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or (body.get("timings") or {}).get("cache_n")
    if cached is None:
        return Finding("no", "usage does not include them")
    total = body["usage"]["prompt_tokens"]
    return Finding("yes" if cached else "partly", f"{cached} of {total} when a prompt is sent again")


@_of_answer("times of a request", lambda server: server.chat())
def _timings(body: Document) -> Finding:
    whose = {"metrics": "vLLM's metrics", "timings": "llama.cpp's timings"}
    names = [name for name in whose if isinstance(body.get(name), dict)]
    return _yes_if(names, ", ".join(whose[name] for name in names), "an answer has none")


# -- parameters


@_of_answer("n", lambda server: server.chat(n=2, temperature=1))
def _several(body: Document) -> Finding:
    return _yes_if(len(body["choices"]) == 2, otherwise="n is ignored")


@_probe("seed")
def _seed(server: Server) -> Finding:
    def asked(seed: int) -> str:
        reply = server.chat("Tell me a story.", seed=seed, temperature=1, max_tokens=16)
        if not _answers(reply) or reply.document is None:
            raise ValueError(_refusal(reply))
        return str(reply.document["choices"][0]["message"]["content"])

    first, again, others = asked(1), asked(1), [asked(2), asked(3)]
    if first != again:
        return Finding("no", "the same seed gave two answers")
    return _yes_if(any(other != first for other in others), otherwise="other seeds gave the same answer")


@_probe("stop")
def _stop(server: Server) -> Finding:
    answer = server.chat(temperature=0, max_tokens=12).document or {}
    text = answer["choices"][0]["message"]["content"]
    word = next((word for word in re.findall(r"\w{2,}", text)[1:]), None)
    if word is None:
        return Finding("unknown", "the model said too little")
    expected = text[: text.index(word)]

    def look(body: Document) -> Finding:
        choice = body["choices"][0]
        shown = choice["message"]["content"]
        return _yes_if(
            (shown, choice["finish_reason"]) == (expected, "stop"),
            otherwise=f"an answer that should end before {word!r} ended with {choice['finish_reason']!r}",
        )

    return _of_reply(server.chat(temperature=0, max_tokens=12, stop=[word]), look)


@_of_answer("logprobs", lambda server: server.chat(logprobs=True, top_logprobs=2))
def _logprobs(body: Document) -> Finding:
    content = (body["choices"][0].get("logprobs") or {}).get("content")
    if not content:
        return Finding("no", "logprobs are ignored")
    return _yes_if(len(content[0]["top_logprobs"]) == 2, otherwise="top_logprobs are ignored")


@_of_answer("echo with logprobs", lambda server: server.complete(echo=True, logprobs=1, max_tokens=1))
def _echo(body: Document) -> Finding:
    choice = body["choices"][0]
    if not choice["text"].startswith("Once upon a time"):
        return Finding("no", "echo is ignored")
    values = (choice.get("logprobs") or {}).get("token_logprobs") or []
    return _yes_if(len(values) > 2 and values[0] is None, otherwise="without log-probabilities of the prompt")


@_of_answer("token ids as prompt", lambda server: server.complete([10, 11, 12]))
def _token_ids(body: Document) -> Finding:
    count = (body.get("usage") or {}).get("prompt_tokens")
    return _yes_if(count in (3, 4), otherwise=f"3 token ids counted as {count}")  # some add a BOS token


@_of_answer("ignore_eos", lambda server: server.chat(ignore_eos=True, max_tokens=200))
def _ignore_eos(body: Document) -> Finding:
    count = body["usage"]["completion_tokens"]
    return _yes_if(count == 200, otherwise=f"the answer ended after {count} of 200 tokens")


@_probe("refuses what it does not know")
def _unknown_parameter(server: Server) -> Finding:
    reply = server.chat(no_such_parameter=1)
    return Finding("no", "it is ignored") if _answers(reply) else Finding("yes", _refusal(reply))


# -- errors and the server itself


@_probe("errors in OpenAI's shape")
def _errors(server: Server) -> Finding:
    reply = server.chat(temperature=-5)
    if _answers(reply):
        return Finding("no", "a temperature of -5 is accepted")
    error = (reply.document or {}).get("error")
    shaped = isinstance(error, dict) and {"message", "type"} <= set(error)
    return _yes_if(shaped and 400 <= reply.status < 500, _refusal(reply), f"{_refusal(reply)}, in another shape")


@_probe("404 for another model")
def _unknown_model(server: Server) -> Finding:
    reply = server.chat("Hi", model="no-such-model", max_tokens=1)
    if _answers(reply):
        return Finding("no", "any name is accepted")
    return _yes_if(reply.status == 404, _refusal(reply), _refusal(reply))


@_probe("health")
def _health(server: Server) -> Finding:
    reply = server.get("/health")
    return _yes_if(reply.status == 200, otherwise=_refusal(reply))


@_probe("metrics")
def _metrics(server: Server) -> Finding:
    reply = server.get("/metrics")
    if reply.status != 200:
        return Finding("no", _refusal(reply))
    if (names := load_names(reply.text)) is None:
        return Finding("partly", "not the names of a known engine")
    return Finding("yes", f"{DIALECTS[names.dialect].title}'s names")


@_of_answer("runtime_config", lambda server: server.get("/v1/runtime_config"))
def _runtime_config(body: Document) -> Finding:
    return Finding("yes", f"{len(body.get('knobs', body))} knobs")


@_probe("aborts when a client leaves")
def _leaving(server: Server) -> Finding:
    if _running(server) is None:
        return Finding("unknown", "its metrics do not report how many requests are running")
    with server.open_stream(_LONG, max_tokens=1_000, ignore_eos=True) as response:
        if response.status_code != 200:
            return Finding("unknown", f"a long answer is refused with status {response.status_code}")
        if not _becomes(server, running=True):
            return Finding("unknown", "the answer ended too soon")
    left = time.monotonic()
    ended = _becomes(server, running=False)
    took = time.monotonic() - left
    return _yes_if(ended, f"within {took:.1f} s", f"it still runs after {LEAVES_WITHIN_S:g} s")


def _becomes(server: Server, *, running: bool) -> bool:
    """Wait until requests run, or until none does; returns whether that happened in time."""
    deadline = time.monotonic() + LEAVES_WITHIN_S
    while bool(_running(server)) is not running:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _running(server: Server) -> int | None:
    reply = server.get("/metrics")
    names = load_names(reply.text) if reply.status == 200 else None
    return read_load(reply.text, names, 0).total.running if names else None
