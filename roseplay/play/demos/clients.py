"""Clients of a demo that send one prompt after the other, and what they measure.

Each of a fixed number of clients sends its next prompt as soon as it has its answer, as benchmarks of servers do
(``--max-concurrency``). More of them than the KV blocks have room for make prompts wait for others' answers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.info import EngineInfo
from roseplay.engine.hardware import MeasuredLoad, hardware
from roseplay.formats.numbers import whole
from roseplay.play.demos.script import DemoClients
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.pace import Speed

FEW, MANY = 32, 128
MEASURED_S = 4.0  # the first tokens of the last seconds are averaged
FILLS_WITHIN_S = 24.0  # the longest time in which the KV blocks may be filled with prompts
_FIT = 72  # clients for whose requests the KV blocks have room, unless published sizes are used
_ANSWERS = (16, 128)  # least and most tokens of an answer
_LEAST_ANSWER_S = 0.05  # the shortest answer, so that this machine keeps all clients busy
_SLACK = 1.5  # on the estimated time until all have their first tokens; prompts wait for decodes, too
_SENT_AT_ONCE = 8  # per look, so that the server goes on meanwhile

Submit = Callable[[list[int], SamplingParams], TrackedRequest]


@dataclass(frozen=True, slots=True)
class ClientSize:
    prompt: int  # tokens
    answer: int
    fit: int  # number of clients for whose requests the KV blocks have room
    prompt_s: float  # estimated seconds to compute one prompt
    published: dict[int, MeasuredLoad]  # measured rows of the same load on the same hardware, by the number of clients

    def takes_s(self, clients: DemoClients, before: int) -> float:
        """Returns the estimated seconds until all clients that fit have had their first tokens for long enough to measure
        the next ones; ``before`` had theirs."""
        return _SLACK * max(0, min(clients.count, self.fit) - before) * self.prompt_s + MEASURED_S


def client_size(info: EngineInfo, config: EngineConfig) -> ClientSize:
    """Returns what clients send, so that the KV blocks have room for ``FEW`` of them, but not for ``MANY``: as in a
    published measurement of this hardware if there is one.

    Raises:
        ValueError: this is no simulated GPU, its KV blocks are not filled in time, or the queue is too short; one sentence.
    """
    speed, pool = Speed.of(info), (info.num_blocks - 1) * info.block_size
    if info.simulated is None or speed is None:
        raise ValueError(
            f"on simulated GPUs only: its {MANY} clients fill the memory of whole ones, such as --run-as h100"
            " --tensor-parallel-size 2 --model qwen3-32b"
        )
    if config.max_waiting < MANY:
        raise ValueError(
            f"its {MANY} clients do not all fit into a queue of {config.max_waiting}: start with --max-waiting {MANY}"
        )
    whole_request = min(pool // _FIT, info.max_model_len)
    answer = max(_ANSWERS[0], min(_ANSWERS[1], whole_request // 8))
    prompt = whole_request - answer
    if published := _published(info, config, pool):
        prompt, answer = published[MANY].prompt, published[MANY].answer
    fit = pool // max(1, prompt + answer)
    if prompt < 1 or not FEW < fit < MANY:
        raise ValueError(
            f"the KV blocks hold {pool:,} tokens, and with a max_model_len of {info.max_model_len:,} not between {FEW} and"
            f" {MANY} requests fill them: start with another --num-blocks to see it"
        )
    if answer * speed.step_s < _LEAST_ANSWER_S:
        raise ValueError(
            f"an answer takes {1000 * answer * speed.step_s:.0f} ms here, too short for this machine to keep {MANY} clients"
            " busy: start with a larger model, such as --model qwen3-8b"
        )
    prompt_s = speed.step_s + prompt * speed.token_s
    if fit * prompt_s > FILLS_WITHIN_S:
        raise ValueError(
            f"computing the prompts that fill the {pool:,} tokens of KV blocks takes about {fit * prompt_s:.0f} s here:"
            f" start with --num-blocks {int(info.num_blocks * FILLS_WITHIN_S / (fit * prompt_s))} to see it"
        )
    return ClientSize(prompt, answer, fit, prompt_s, published)


def _published(info: EngineInfo, config: EngineConfig, pool: int) -> dict[int, MeasuredLoad]:
    """Returns the measurements of the shortest answers for which ``MANY`` clients lacked KV blocks, by clients; none if
    that is not so in a pool of this many tokens."""
    loads = [one for one in hardware().measured_loads(info, config) if one.prompt + one.answer <= info.max_model_len]
    fit = (load for load in loads if FEW < pool // (load.prompt + load.answer) < MANY)
    many = [load for load in fit if load.clients == MANY and load.saturated]
    if not many:
        return {}
    same = min(many, key=lambda load: load.answer)[:3]  # server, prompt and answer
    return {load.clients: load for load in loads if load[:3] == same}


class Measured(NamedTuple):
    """The mean time to first token, in s, of the prompts whose first token came between two times of the engine's clock."""

    ttft_s: float
    since_ns: int
    until_ns: int


class ClientTraffic:
    """The clients of one demo; ``submit`` sends a request, ``now_ns`` is the engine's clock. For one thread."""

    def __init__(self, submit: Submit, now_ns: Callable[[], int], vocab_size: int) -> None:
        self._submit, self._now_ns, self._ids = submit, now_ns, range(max(2, vocab_size))
        self._numbers = itertools.count()
        self._clients: DemoClients | None = None
        self._prompt = self._answer = 0  # tokens of each
        self._begun_ns = 0
        self._first_wave = 0  # requests that the first clients sent at once, which are not measured
        self.requests: list[TrackedRequest] = []
        self.measured: dict[int, Measured] = {}  # by the number of clients

    @property
    def name(self) -> str:
        """The name of the present clients; empty before the first."""
        return self._clients.name if self._clients else ""

    def begin(self, clients: DemoClients, size: ClientSize) -> None:
        """Keep as many requests unfinished as there are clients, from now on."""
        if self._clients is None:
            self._first_wave = clients.count
        self._prompt, self._answer = size.prompt, size.answer
        self._clients, self._begun_ns = clients, self._now_ns()

    def send(self) -> None:
        """Send for the clients that have no request; the first clients' first answers differ in length, so that they do
        not end together."""
        if self._clients is None:
            return
        unfinished = sum(not tracked.finished for tracked in self.requests)
        for _ in range(min(_SENT_AT_ONCE, self._clients.count - unfinished)):
            number, answer = next(self._numbers), self._answer
            if number < self._first_wave:
                answer = max(2, answer * (number + 1) // self._first_wave)
            prompt = random.Random(f"client {number}").choices(self._ids, k=self._prompt)
            self.requests.append(self._submit(prompt, SamplingParams(max_new_tokens=answer, ignore_eos=True)))

    def figures(self) -> dict[str, str]:
        """Returns the figures of the present clients, under their name: ``clients``; if there are any, ``waiting``, the
        prompts without a first token; and ``first_token``, the mean time to the first tokens of the last seconds.

        With those of the clients before, ``clients_beyond`` is how many times as late first tokens come, if that is more
        than there are times as many clients, otherwise ``clients_within``.
        """
        if self._clients is None:
            return {}
        name, now_ns = self.name, self._now_ns()
        figures = {f"{name}_clients": whole(self._clients.count)}
        if waiting := sum(tracked.ttft_s is None and not tracked.finished for tracked in self.requests):
            figures[f"{name}_waiting"] = whole(waiting)
        since_ns = max(self._begun_ns, now_ns - round(MEASURED_S * 1e9))
        if latest := list(self._latest_s(since_ns)):
            figures[f"{name}_first_token"] = duration(fmean(latest))
            self.measured[self._clients.count] = Measured(fmean(latest), since_ns, now_ns)
        if len(self.measured) > 1:
            (few, (before, *_)), (many, (after, *_)) = self.measured.items()
            kind = "beyond" if after / before > many / few else "within"
            figures[f"clients_{kind}"] = f"{after / before:.2g}"
        return figures

    def _latest_s(self, since_ns: int) -> Iterator[float]:
        for tracked in self.requests[self._first_wave :]:
            first_ns = tracked.stream.metrics.first_token_ns
            if first_ns is not None and first_ns >= since_ns and tracked.ttft_s is not None:
                yield tracked.ttft_s


def figures_of_size(size: ClientSize) -> dict[str, str]:
    """Returns ``client_prompt``, ``client_fit`` and, where ``FEW`` and ``MANY`` clients were measured by others,
    ``published_few``, ``published_many`` and ``published_by``, the measured server."""
    figures = {"client_prompt": whole(size.prompt), "client_fit": whole(size.fit)}
    for name, count in (("few", FEW), ("many", MANY)):
        if load := size.published.get(count):
            figures |= {f"published_{name}": duration(load.ttft_s), "published_by": load.server}
    return figures


def duration(seconds: float) -> str:
    """Returns a time as text: ``840 ms``, ``19.0 s``."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{whole(1000 * seconds)} ms"
