"""The chats in the lanes of all tabs, with the settings of their answers, and the prompts of programs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.config import SamplingParams
from roseplay.play import chats
from roseplay.play.answer_settings import NAMES, Settings, checked_system, defaults
from roseplay.play.lanes import Lane
from roseplay.play.requests import Requests
from roseplay.play.session import Tab, Tabs, check_lane
from roseplay.recording.request_registry import TrackedRequest


class ChatService:
    """The chats of all tabs. Thread-safe."""

    def __init__(self, tabs: Tabs, requests: Requests) -> None:
        self._engine, self._tabs, self._requests = requests.engine, tabs, requests
        self._sends = itertools.count(1)

    def send(
        self,
        prompt: str,
        *,
        lanes: Sequence[int],
        tab_id: str,
        params: SamplingParams | None = None,
        system: str | None = None,
        changes: Mapping[str, Any] | None = None,
        ignore_eos: bool = False,
        edit: bool = False,
    ) -> list[int]:
        """Continue the chats of some lanes, each with its own seed; returns the requests' IDs.

        An unfinished answer in a lane is aborted first. ``params`` and ``system`` default to the lane's settings with
        ``changes``, and ``ignore_eos`` to answer that many tokens; with ``edit`` the prompt replaces the last question.

        Raises:
            ValueError: the prompt is empty or too long.
        """
        text = chats.checked_prompt(prompt)
        chats.check_chars(len(text), self._engine.info.max_model_len)
        tab, turn, ids = self._open(tab_id), next(self._sends), []
        for lane in [tab.lane(number) for number in lanes]:
            settings = self.settings(tab_id, lane.number).changed(changes or {})
            drawn = params or dataclasses.replace(settings.params(), ignore_eos=ignore_eos)
            if drawn.seed is None:
                drawn = dataclasses.replace(drawn, seed=lane_seed(turn, lane.number))
            system_prompt = settings.system if system is None else checked_system(system)
            ids.append(self._ask(tab, lane, text, drawn, system_prompt, instead=edit))
        return ids

    def ask(
        self, prompt: str, params: SamplingParams, *, system: str = "", messages: Sequence[chats.Message] | None = None
    ) -> TrackedRequest:
        """Submit one request of a program, without tab, lane or lease. ``messages`` replace ``prompt``.

        Raises:
            ValueError: the prompt is empty, malformed or too long.
        """
        system = checked_system(system)
        if messages is not None:
            turns = chats.checked_messages(messages)
        else:
            turns = [{"role": "user", "content": chats.checked_prompt(prompt)}]
        if system.strip():
            turns = [{"role": "system", "content": system}, *turns]
        chats.check_chars(sum(len(turn["content"]) for turn in turns), self._engine.info.max_model_len)
        return self._requests.submit(chats.as_prompt(turns, self._engine), params, kind="api")

    def regenerate(self, *, lanes: Sequence[int], tab_id: str) -> list[int]:
        """Ask the last question of these lanes again with another seed; returns the requests' IDs.

        Lanes without a question are skipped.

        Raises:
            ValueError: no lane has a question.
        """
        tab, turn, ids = self._open(tab_id), next(self._sends), []
        for lane in [tab.lane(number) for number in lanes]:
            last, settings = lane.chat.last, self.settings(tab_id, lane.number)
            if last is not None:
                drawn = settings.params(lane_seed(turn, lane.number))
                ids.append(self._ask(tab, lane, last.question, drawn, settings.system, instead=True))
        if not ids:
            raise ValueError("there is no answer to generate again: send a prompt first")
        return ids

    def new_chat(self, *, lanes: Sequence[int], tab_id: str) -> int:
        """Abort and clear the chats of these lanes; returns how many had one."""
        tab = self._open(tab_id)
        cleared = [lane for lane in [tab.lane(number) for number in lanes] if lane.chat.turns]
        for lane in cleared:
            with lane.chat.lock:
                self._abort_answer(lane)
                lane.chat.clear()
        return len(cleared)

    def _open(self, tab_id: str) -> Tab:
        """Returns the tab, whose chats are about to change, after ending its demo."""
        tab = self._tabs.open(tab_id)
        tab.end_demo()
        return tab

    def settings(self, tab_id: str, lane: int = 0) -> Settings:
        """Returns the settings of a tab's lane; for lane 0, those of lanes without settings of their own."""
        tab, default = self._tabs.renew(tab_id), defaults(self._engine.info)
        return tab.settings.of(lane, default) if tab else default

    def own_settings(self, tab_id: str, lane: int) -> list[str]:
        """Returns the names of a lane's own settings; for lane 0, of those that differ from the defaults."""
        tab = self._tabs.renew(tab_id)
        return tab.settings.own(lane) if tab else []

    def sources(self, tab_id: str, lane: int) -> dict[str, str]:
        """Returns where each setting of a lane comes from: ``lane``, ``tab``, ``model`` (its author) or ``page``."""
        of_lane, of_tab = self.own_settings(tab_id, lane) if lane else (), self.own_settings(tab_id, 0)
        of_model = self._engine.info.sampling_defaults
        return {
            name: "lane" if name in of_lane else "tab" if name in of_tab else "model" if name in of_model else "page"
            for name in NAMES
        }

    def set_settings(self, changes: Mapping[str, Any], *, lane: int, tab_id: str) -> None:
        """Change settings of one lane, or of all for lane 0. Raises ``ValueError``."""
        check_lane(lane, least=0)
        tab, info = self._tabs.open(tab_id), self._engine.info
        tab.settings.change(lane, changes, defaults(info), info.max_model_len)

    def reset_settings(self, *, lane: int, tab_id: str) -> None:
        """Reset a lane to the settings of all lanes, or for lane 0, all lanes to the defaults."""
        check_lane(lane, least=0)
        self._tabs.open(tab_id).settings.reset(lane)

    def _ask(self, tab: Tab, lane: Lane, question: str, params: SamplingParams, system: str, *, instead: bool) -> int:
        """Submit the next turn of a lane's chat or, if ``instead``, replace the last one; returns the request's ID."""
        with lane.chat.lock:
            before = lane.chat.turns[:-1] if instead else lane.chat.turns
            prompt, left_out = chats.next_prompt(
                before, system=system, question=question, max_new_tokens=params.max_new_tokens, engine=self._engine
            )
            self._abort_answer(lane)
            tokenizer, model = self._engine.tokenizer, self._engine.info.model
            thinking, no_role = chats.begins_thinking(prompt, tokenizer), chats.has_no_role(system, tokenizer)
            turn = chats.Turn(question, model, left_out, thinking, no_role)
            tracked = self._requests.submit(
                prompt, params, kind="lane", lane=lane.number, tab=tab.tab_id, title=question, thinking=turn.thinking
            )
            turn.begin(tracked)
            tab.add(tracked)
            lane.chat.append(before, turn)
        return tracked.request_id

    def _abort_answer(self, lane: Lane) -> None:
        """Abort the lane's unfinished answer, if any."""
        tracked = lane.chat.last.tracked if lane.chat.last else None
        if tracked and not tracked.finished:
            self._requests.abort(tracked.request_id)


def lane_seed(turn: int, lane: int) -> int:
    """Returns a seed that differs between lanes and between calls of ``send``."""
    return 1000 * turn + lane
