"""Traffic from a tab or a program: bursts, steady traffic, and requests from a file."""

from __future__ import annotations

import itertools
from typing import Any

from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineBusyError
from roseplay.formats.text import shown
from roseplay.play.bursts import MAX_SEED, MAX_SIZE, Burst, kind_of, traffic_source
from roseplay.play.chats import as_prompt
from roseplay.play.open_loop import OpenLoop
from roseplay.play.own import FileTraffic, read_own
from roseplay.play.requests import Requests
from roseplay.play.session import Tabs
from roseplay.play.steady import SteadyPlan, SteadyTraffic
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.arrivals import Spacing
from roseplay.traffic.lengths import prompt_length
from roseplay.traffic.own import OwnRequest, check_room, random_prompt
from roseplay.traffic.own_traffic import OwnTraffic
from roseplay.traffic.prompts import KINDS, Prompt, PromptMix

LOOPS = ("steady", "file")  # kinds of traffic that go on for a while: steady, and the requests of a file
_FIRST_SEED = 7


class TrafficService:
    """Sends bursts, steady traffic and traffic from files to an engine, for tabs and programs. Thread-safe."""

    def __init__(self, tabs: Tabs, requests: Requests) -> None:
        self._engine, self._tabs, self._requests = requests.engine, tabs, requests
        self._burst_ids = itertools.count(1)
        self._seeds = itertools.count(_FIRST_SEED)
        self.newest_burst: Burst | None = None  # the last one that was begun

    def burst(
        self,
        *,
        size: int,
        kind: str,
        max_new_tokens: int,
        seed: int | None,
        tab_id: str,
        mix: PromptMix | None = None,
        tenant: str | None = None,
        priority: int = 0,
    ) -> Burst:
        """Submit many requests at once, each with an answer of exactly ``max_new_tokens`` tokens.

        Without a seed, each burst has different prompts; without a mix, the usual ones for its kind. If the engine
        accepts only some of the requests, the burst consists of those.

        Raises:
            ValueError: the size, kind, seed, tenant or priority is invalid.
            EngineBusyError: the engine accepts none of the requests.
        """
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a burst of {shown(size)} is not possible: use 1 to {MAX_SIZE} requests")
        key, seed = kind_of(kind), self._seed(seed)
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True, tenant=tenant, priority=priority)
        tab = self._tabs.open(tab_id) if tab_id else None
        if tab:
            tab.end_demo()
        burst = Burst(next(self._burst_ids), key, size, seed, max_new_tokens, self._engine.info.block_size)
        for prompt in (mix or KINDS[key]).prompts(traffic_source(self._engine, key, seed), size):
            try:
                tracked = self._requests.submit(
                    self._chat(prompt), params, kind="burst", burst=burst.burst_id, tab=tab_id
                )
            except EngineBusyError:
                if not burst.requests:
                    raise
                burst.size = len(burst.requests)
                break
            burst.requests.append(tracked)
            self.newest_burst = burst
            if tab:
                tab.add(tracked)
        return burst

    def start_steady(
        self,
        *,
        rate: float,
        spacing: Spacing,
        kind: str,
        max_new_tokens: int,
        seed: int | None,
        tab_id: str,
        tenant: str | None = None,
        priority: int = 0,
    ) -> SteadyTraffic:
        """Send requests at a rate while the tab is open, in place of its previous steady traffic.

        Without a seed, running traffic keeps its own, so that changing the rate does not repeat prompts.

        Raises:
            ValueError: the rate, spacing, kind, seed, tenant or priority is invalid, there is no tab, or the answers are
                too long.
        """
        if not tab_id:
            raise ValueError("steady traffic needs the id of a tab: it ends when that tab no longer polls")
        tab = self._tabs.open(tab_id)
        before = tab.traffic.get("steady") if seed is None else None
        running = before if isinstance(before, SteadyTraffic) and before.running else None
        seed = running.plan.seed if running else self._seed(seed)
        plan = SteadyPlan(rate=rate, spacing=spacing, kind=kind, max_new_tokens=max_new_tokens, seed=seed)
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True, tenant=tenant, priority=priority)
        self._engine.info.check_fits(1, max_new_tokens)
        tab.end_demo()
        source = traffic_source(self._engine, plan.kind, plan.seed)

        def send(index: int, due_ns: int) -> TrackedRequest:
            prompt = KINDS[plan.kind].prompt(source, index)
            tracked = self._requests.submit(self._chat(prompt), params, kind="steady", tab=tab_id, due_ns=due_ns)
            tab.add(tracked)
            return tracked

        if running:
            running.change(plan, send)
            return running
        steady = SteadyTraffic(plan, send, lambda: self._tabs.get(tab_id) is tab, self._engine.clock)
        tab.take_traffic("steady", steady)
        steady.start()
        return steady

    def stop(self, kind: str, tab_id: str = "", *, abort: bool = False) -> list[OpenLoop]:
        """Send no more traffic of a kind in ``LOOPS``, from a tab or from all; returns what there was, running or not.

        Args:
            abort: abort a request that is being submitted now.
        """
        tabs = [self._tabs.open(tab_id)] if tab_id else self._tabs.all()
        loops = [loop for tab in tabs if (loop := tab.traffic.get(kind)) is not None]
        for loop in loops:
            loop.stop(abort=abort)
        return loops

    def check_own(self, content: bytes, name: str = "") -> OwnTraffic:
        """Read a file of traffic. Raises ``ValueError``, which names what is wrong in one sentence."""
        file, info = read_own(content, name), self._engine.info
        room = min(info.max_model_len, (info.num_blocks - 1) * info.block_size)
        for index, request in enumerate(file.requests):
            check_room(index, self._length(index, request), request.answer_tokens, room)
        return file

    def start_own(self, content: bytes, *, name: str = "", seed: int | None = None, tab_id: str) -> FileTraffic:
        """Send a file's requests at its times, in place of the file that the tab is playing.

        Without a seed, prompts that are given by their lengths differ each time, like those of bursts.

        Raises:
            ValueError: see ``check_own``; or the seed is invalid, or there is no tab. Nothing has been sent.
        """
        if not tab_id:
            raise ValueError("traffic from a file needs the id of a tab: it ends when that tab no longer polls")
        tab = self._tabs.open(tab_id)
        file, seed = self.check_own(content, name), self._seed(seed)
        tab.end_demo()

        def send(index: int, due_ns: int) -> TrackedRequest:
            request = file.requests[index]
            prompt: Prompt | int = request.prompt
            if isinstance(prompt, int):
                prompt = random_prompt(prompt, index, self._engine.info.vocab_size, seed)
            tracked = self._requests.submit(self._chat(prompt), request.params(), kind="own", tab=tab_id, due_ns=due_ns)
            tab.add(tracked)
            return tracked

        traffic = FileTraffic(file, seed, send, lambda: self._tabs.get(tab_id) is tab, self._engine.clock)
        tab.take_traffic("file", traffic)
        traffic.start()
        return traffic

    def _length(self, index: int, request: OwnRequest) -> int:
        """Returns the number of prompt tokens of request ``index``."""
        if isinstance(request.prompt, int):
            return request.prompt
        try:
            return prompt_length(self._chat(request.prompt), self._engine)
        except ValueError as error:
            raise ValueError(f"request {index + 1} of the traffic: {error}") from None

    def _seed(self, seed: int | None) -> int:
        if seed is None:
            return next(self._seeds)
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed is {shown(seed)}: use an integer from 0 to {MAX_SEED}")
        return seed

    def _chat(self, prompt: Prompt) -> Any:
        """Returns a prompt for the engine: text is one chat message."""
        return as_prompt([{"role": "user", "content": prompt}], self._engine) if isinstance(prompt, str) else prompt
