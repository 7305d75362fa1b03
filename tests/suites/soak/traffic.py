"""The traffic of a soak: what tabs, programs and users who turn knobs do, randomly but seeded."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.suites.soak.client import TIMEOUT_S, Client, RefusedError
from tests.suites.soak.journal import Actor, Journal
from tests.suites.soak.tab import HIDDEN_S, VISIBLE_S, Tab

QUESTIONS = (
    "What is a KV block?", "Tell me a story about a fox.", "What does the scheduler do in each step?", "Why is the sky blue?",
    "What is a prefix cache?", "How does chunked prefill work?", "Wie geht es dir? 你好 🌹", "Hello " * 60,
)  # fmt: skip
KINDS = ("unique", "equal", "shared head", "mix")
# Each is set for some seconds and then reset. Slow motion stays small, since a soak needs many steps.
KNOBS: tuple[dict[str, Any], ...] = (
    {"max_batch_size": 1},
    {"max_batch_size": 3, "prefill_max_batch_size": 1},
    {"max_batch_size": 512},
    {"prefill_max_tokens": 1},
    {"prefill_max_tokens": 16},
    {"step_max_tokens": 1},
    {"step_max_tokens": 48, "prefill_max_tokens": 32},
    {"chunked_prefill": False, "prefill_max_tokens": 8},
    {"prefix_cache": False},
    {"prefix_cache": False, "same_step_sharing": False},
    {"same_step_sharing": False, "batched_append": False},
    {"admission": "blocking"},
    {"slow_motion": 4.0},
)
DEFAULTS = {
    "max_batch_size": 32, "prefill_max_tokens": None, "prefill_max_batch_size": None, "step_max_tokens": None,
    "chunked_prefill": True, "prefix_cache": True, "same_step_sharing": True, "batched_append": True,
    "admission": "queued", "slow_motion": 1.0,
}  # fmt: skip
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("set_knobs", {"knobs": {"max_batch_size": 0}}),
    ("set_knobs", {"knobs": "{not json"}),
    ("submit", {"prompt": "   "}),
    ("submit", {"prompt": "hello", "lane": 99}),
    ("submit", {"prompt": "x" * 9000}),
    ("submit", {"prompt": "hello", "tab": "x"}),
    ("burst", {"size": 3, "kind": "weird"}),
    ("chat", {"prompt": "hello", "temperature": -1}),
    ("chat", {"messages": [{"role": "user"}]}),
    ("stop", {"ids": ["first"]}),
)
EXPORTS = ("trace.json", "tokens.csv", "report.html")  # each takes a second per MB of the recording
ROUTES = ("/", "/config", "/ui/lab", "/ui/export", "/ui/export/nothing.txt", "/ui/demo.jsonl", "/health", "/ui/nothing")
EXPERIMENTS: tuple[dict[str, Any], ...] = (
    {"scenario": "dedup", "params": {"num_requests": 6, "max_new_tokens": 8}},
    {"scenario": "token-budget", "params": {"num_requests": 6, "max_new_tokens": 8}},
    {"scenario": "kv-pressure", "params": {"num_requests": 4, "max_new_tokens": 16}},
    {"scenario": "admission", "params": {"num_requests": 6, "max_new_tokens": 4}},
)


class Traffic:
    """All clients of a run.

    Args:
        rate: multiplies the frequency of everything.
        lab_every_s: mean time between lab runs; 0 for none.
    """

    def __init__(self, client: Client, journal: Journal, *, seed: int, rate: float, lab_every_s: float) -> None:
        self._client, self._journal = client, journal
        self._lab = threading.Lock()  # held by the lab, or to set blocking admission: together they deadlock
        acts: list[tuple[str, float, Callable[[random.Random], Any]]] = [
            *((f"tab {number}", 2.0, self._tab_life) for number in range(1, 4)),
            ("chats", 1.2, self._chat),
            ("leavers", 6.0, self._leave),
            ("submits", 3.0, self._submit),
            ("bursts", 12.0, self._burst),
            ("knobs", 8.0, self._turn_knobs),
            ("stop all", 45.0, self._stop_all),
            ("downloads", 40.0, lambda seeded: self._export("recording.jsonl")),
            ("exports", 240.0, lambda seeded: self._export(seeded.choice(EXPORTS))),
            ("bad input", 4.0, self._bad),
            ("visitors", 10.0, lambda seeded: client.get(seeded.choice(ROUTES))),
        ]
        if lab_every_s:
            acts.append(("lab", lab_every_s * rate, self._experiment))
        self._actors = [Actor(journal, name, seed, every / rate, act) for name, every, act in acts]

    def start(self) -> None:
        for actor in self._actors:
            actor.start()

    def join(self, timeout: float) -> list[str]:
        """Wait for all clients after ``Journal.stopped`` is set; returns the names of those that hang."""
        deadline = time.monotonic() + timeout
        for actor in self._actors:
            actor.join(max(0.0, deadline - time.monotonic()))
        return [actor.name for actor in self._actors if actor.is_alive()]

    def _send(self, what: str, sent_as: str, exact: int | None, /, **arguments: Any) -> list[int]:
        """Call an endpoint that returns the ids of requests, and record them."""
        asked_s = time.monotonic()
        try:
            answer = self._client.call(what, **arguments)
        except RefusedError as error:
            if "there is no answer to generate again" not in str(error):
                self._journal.refused(f"/{what}", str(error))
            return []
        return self._journal.submitted(sent_as, answer["ids"], asked_s, exact)

    # Tabs

    def _tab_life(self, seeded: random.Random) -> None:
        """A tab that is opened, used for a while, sometimes hidden, and closed."""
        tab = Tab(self._client.port, self._journal, seeded)
        mine: list[int] = []
        until = time.monotonic() + seeded.uniform(15, 90)
        acts = [self._ask] * 5 + [self._tab_burst, self._tab_settings, self._tab_looks, self._tab_stops]
        try:
            while time.monotonic() < until and not self._journal.pause(seeded.uniform(0.5, 4.0)):
                tab.every_s = HIDDEN_S if seeded.random() < 0.2 else VISIBLE_S
                seeded.choice(acts)(seeded, tab, mine)
            tab.every_s = VISIBLE_S
            until = time.monotonic() + TIMEOUT_S * (
                seeded.random() < 0.5
            )  # others are closed in the middle of an answer
            while tab.waiting and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            tab.close()
        self._journal.count("tabs")

    def _ask(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        lane, how, exact = seeded.choice((0, 1, 1, 2, 3, 8)), {}, None
        most = seeded.choice((8, 40, 120, 200))
        if seeded.random() < 0.4:
            how, exact = {"ignore_eos": True}, most
        elif seeded.random() < 0.5:
            temperature = seeded.choice((0.0, 0.7, 1.5))
            how = {"temperature": temperature, "top_p": 0.9, "top_k": 40, "seed": seeded.randrange(9)}
        elif seeded.random() < 0.3:
            how = {"stop": ["token", "."], "system": "Answer in one sentence."}
        asked = {"prompt": seeded.choice(QUESTIONS), "lane": lane, "tab": tab.tab_id, "max_new_tokens": most, **how}
        asked["edit"] = seeded.random() < 0.15
        with self._journal.stopping(mine[-80:]):  # this first stops a lane that is still answering
            mine += self._send("submit", "lane", exact, **asked)

    def _tab_burst(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        mine += self._one_burst(seeded, tab.tab_id)

    def _tab_settings(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        act, lane = seeded.choice(("new_chat", "regenerate", "set", "reset")), seeded.choice((0, 1, 2))
        if act in ("set", "reset"):
            changes = {"temperature": seeded.choice((0, 0.8)), "max_new_tokens": seeded.choice((16, 90))}
            how = {"changes": changes} if act == "set" else {"reset": True}
            self._client.post("/ui/sampling", {"tab": tab.tab_id, "lane": lane, **how})
            return
        with self._journal.stopping(mine[-80:]):
            if act == "new_chat":
                self._client.call("new_chat", lane=lane, tab=tab.tab_id)
            else:
                mine += self._send("regenerate", "lane", None, lane=lane, tab=tab.tab_id)

    def _tab_looks(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        """Inspects blocks, as clicks on the block map do."""
        for block in seeded.sample(tab.blocks, min(3, len(tab.blocks))) or [1]:
            self._client.get(f"/ui/block/{block}?tab={tab.tab_id}")

    def _tab_stops(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        with self._journal.stopping(mine):
            if seeded.random() < 0.5:
                self._client.call("stop", tab=tab.tab_id)
            elif mine:
                self._client.call("stop", ids=mine[-4:])

    # Programs

    def _chat(self, seeded: random.Random) -> None:
        """A prompt or a conversation, directly or through Gradio's queue."""
        asked: dict[str, Any] = {"prompt": seeded.choice(QUESTIONS), "max_new_tokens": seeded.choice((4, 60, 120))}
        if seeded.random() < 0.2:
            roles = ("user", "assistant") * 2
            asked["messages"] = [{"role": role, "content": seeded.choice(QUESTIONS)} for role in (*roles, "user")]
            asked["system"] = "Be brief."
        if seeded.random() < 0.4:
            asked |= {"temperature": 0.8, "seed": seeded.randrange(100), "stop": ["token"]}
        call = seeded.choice((self._client.call, self._client.call, self._client.call_queued))
        try:
            text = call("chat", **asked)
        except RefusedError as error:
            self._journal.refused("/chat", str(error))
            return
        self._journal.count("chats answered")
        if not isinstance(text, str):
            self._journal.complain(f"/chat answered {text!r}")

    def _leave(self, seeded: random.Random) -> None:
        """A client that disconnects in the middle of its answer."""
        seed = seeded.randrange(1000)
        asked = {"prompt": seeded.choice(QUESTIONS), "max_new_tokens": 1500, "temperature": 2.0, "seed": seed}
        answer = None
        if seeded.random() < 0.5:
            self._client.leave("chat", seeded.uniform(0.1, 1.0), **asked)
        else:
            answer = self._client.call_queued("chat", leave_after=1, **asked)
        self._journal.count("chats left" if answer is None else "chats answered")

    def _submit(self, seeded: random.Random) -> None:
        most = seeded.choice((1, 16, 100, 700))
        ids = self._send("submit", "api", most, prompt=seeded.choice(QUESTIONS), max_new_tokens=most, ignore_eos=True)
        self._stop_soon(ids, seeded, 0.3)

    def _burst(self, seeded: random.Random) -> None:
        ids = self._one_burst(seeded, "")
        self._stop_soon(seeded.sample(ids, (len(ids) + 1) // 2), seeded, 0.2)

    def _one_burst(self, seeded: random.Random, tab_id: str) -> list[int]:
        most, size = seeded.choice((16, 32)), seeded.choice((1, 2, 4, 8, 8, 20, 20, 64))
        asked = {"size": size, "kind": seeded.choice(KINDS), "max_new_tokens": most}
        if seeded.random() < 0.5:
            asked["seed"] = seeded.randrange(1000)
        return self._send("burst", "burst", most, tab=tab_id, **asked)

    def _stop_soon(self, ids: list[int], seeded: random.Random, chance: float) -> None:
        if ids and seeded.random() < chance:
            self._journal.pause(seeded.uniform(0, 0.5))
            with self._journal.stopping(ids):
                self._client.call("stop", ids=ids)

    # Steering

    def _turn_knobs(self, seeded: random.Random) -> None:
        changes = seeded.choice(KNOBS)
        blocking = "admission" in changes
        if blocking and not self._lab.acquire(blocking=False):
            return
        try:
            before = self._client.call("set_knobs")
            after = self._client.call("set_knobs", knobs=changes)
            if after != {**before, **changes}:
                self._journal.complain(f"/set_knobs of {changes} answered {after}")
            self._journal.pause(seeded.uniform(0.2, 5))
            for _ in range(seeded.choice((0, 0, 20))):  # a slider being dragged
                self._client.call("set_knobs", knobs={"prefill_max_tokens": seeded.choice((None, 1, 64, 256))})
        finally:
            self.restore_knobs()
            if blocking:
                self._lab.release()

    def restore_knobs(self) -> None:
        self._client.call("set_knobs", knobs=json.dumps(DEFAULTS))

    def _stop_all(self, seeded: random.Random) -> None:
        with self._journal.stopping(None):
            self._client.call("stop")

    # The rest

    def _experiment(self, seeded: random.Random) -> None:
        body = {**seeded.choice(EXPERIMENTS), "seed": seeded.randrange(5)}
        with self._lab:
            answer = self._client.post("/ui/lab/run", body).json()
            stopper = threading.Timer(seeded.uniform(0.5, 5), self._client.post, ("/ui/lab/stop", {}))
            if seeded.random() < 0.35:
                stopper.start()
            try:
                self._wait_for_lab()
            finally:
                stopper.cancel()
            job = self._client.get(f"/ui/lab/job?id={answer['job']}").json()
            if job["result"]:
                self._client.get(f"/ui/lab/result/{job['result']}/report.html")
            self._journal.count(f"lab runs {job['state']}")
            if job["state"] == "error":
                self._journal.complain(f"the lab failed: {job['error']}")

    def _wait_for_lab(self) -> None:
        """Wait until the lab has released the live engine."""
        until = time.monotonic() + TIMEOUT_S
        while self._client.get("/ui/delta?since=0").json()["lab"]:
            if time.monotonic() > until:
                self._journal.complain(f"the lab had not ended after {TIMEOUT_S:g} s")
                return
            time.sleep(0.5)

    def warm_up(self) -> None:
        """Do once what loads code on first use, while the recording is still small."""
        for file in EXPORTS:
            self._export(file)

    def _export(self, file: str) -> None:
        reply = self._client.get(f"/ui/export/{file}")
        if reply.status_code != 200 or not reply.content:
            self._journal.complain(f"/ui/export/{file} answered {reply.status_code}")

    def _bad(self, seeded: random.Random) -> None:
        endpoint, arguments = seeded.choice(BAD)
        try:
            answer = self._client.call(endpoint, **arguments)
        except RefusedError as error:
            if "Traceback" in str(error) or not str(error).strip():
                self._journal.complain(f"/{endpoint} refused {arguments} with {error}")
            return
        self._journal.complain(f"/{endpoint} took {str(arguments)[:80]} and answered {str(answer)[:80]}")
