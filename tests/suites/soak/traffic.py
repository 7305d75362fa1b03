"""The traffic of a soak: what tabs, programs and users who turn knobs do, randomly but seeded."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.suites.soak.client import TIMEOUT_S, Client, RefusedError
from tests.suites.soak.journal import Actor, Journal
from tests.suites.soak.tab import Tab

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
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("set_knobs", {"knobs": {"nope": 1}}),
    ("set_knobs", {"knobs": {"max_batch_size": 0}}),
    ("set_knobs", {"knobs": "{not json"}),
    ("submit", {"prompt": "   "}),
    ("submit", {"prompt": "hello", "lane": 99}),
    ("submit", {"prompt": "hello", "max_new_tokens": -4}),
    ("submit", {"prompt": "x" * 9000}),
    ("submit", {"prompt": "hello", "tab": "x"}),
    ("burst", {"size": 0}),
    ("burst", {"size": 3, "kind": "weird"}),
    ("chat", {"prompt": "hello", "temperature": -1}),
    ("chat", {"messages": [{"role": "user"}]}),
    ("stop", {"ids": ["first"]}),
)
EXPORTS = ("trace.json", "tokens.csv", "report.html")  # each takes a second per MB of the recording
ROUTES = (
    "/",
    "/config",
    "/ui/lab",
    "/ui/export",
    "/ui/export/nothing.txt",
    "/ui/demo.jsonl",
    "/health",
    "/gradio_api/info",
    "/ui/no-such-page",
)
MAX_LANES = 8
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

    def __init__(
        self, client: Client, journal: Journal, *, seed: int, rate: float, tabs: int, lab_every_s: float
    ) -> None:
        self._client, self._journal = client, journal
        self._lab = threading.Lock()  # held by the lab, or to set blocking admission: together they deadlock
        acts: list[tuple[str, float, Callable[[random.Random], Any]]] = [
            *((f"tab {number}", 2.0, self._tab_life) for number in range(1, tabs + 1)),
            ("chats", 2.0, self._chat),
            ("queued chats", 5.0, self._queued_chat),
            ("conversations", 7.0, self._conversation),
            ("leavers", 6.0, self._leave),
            ("submits", 3.0, self._submit),
            ("bursts", 12.0, self._burst),
            ("knobs", 8.0, self._turn_knobs),
            ("stop all", 45.0, self._stop_all),
            ("downloads", 40.0, self._download),
            ("exports", 240.0, self._export),
            ("bad input", 4.0, self._bad),
            ("visitors", 10.0, self._visit),
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
                tab.hidden = seeded.random() < 0.2
                seeded.choice(acts)(seeded, tab, mine)
            if seeded.random() < 0.5:  # the others are closed in the middle of their answers
                self._read_to_the_end(tab)
        finally:
            tab.close()
        self._journal.count("tabs")

    def _ask(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        lane, how, exact = seeded.choice((0, 1, 1, 2, 3, 8)), {}, None
        most = seeded.choice((8, 40, 120, 200))
        if seeded.random() < 0.4:
            how, exact = {"ignore_eos": True}, most
        elif seeded.random() < 0.5:
            how = {
                "temperature": seeded.choice((0.0, 0.7, 1.5)),
                "top_p": 0.9,
                "top_k": 40,
                "seed": seeded.randrange(9),
            }
        elif seeded.random() < 0.3:
            how = {"stop": ["token", "."], "system": "Answer in one sentence."}
        asked = {"prompt": seeded.choice(QUESTIONS), "lane": lane, "tab": tab.tab_id, "max_new_tokens": most, **how}
        asked["edit"] = seeded.random() < 0.15
        with self._journal.stopping(self._running(mine)):  # this first stops a lane that is still answering
            mine += self._send("submit", "lane", exact, **asked)

    def _tab_burst(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        mine += self._one_burst(seeded, tab.tab_id)

    def _tab_settings(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        act = seeded.choice(("new_chat", "regenerate", "set_sampling", "reset"))
        lane = seeded.choice((0, 1, 2))
        try:
            if act == "set_sampling":
                settings = {"temperature": seeded.choice((0, 0.8)), "max_new_tokens": seeded.choice((16, 90))}
                self._client.post("/ui/sampling", {"tab": tab.tab_id, "lane": lane, "changes": settings})
            elif act == "reset":
                self._client.post("/ui/sampling", {"tab": tab.tab_id, "lane": lane, "reset": True})
            elif act == "new_chat":
                with self._journal.stopping(self._running(mine)):
                    self._client.call("new_chat", lane=lane, tab=tab.tab_id)
            else:
                self._regenerate(lane, tab, mine)
        except RefusedError as error:
            self._journal.refused(act, str(error))

    def _regenerate(self, lane: int, tab: Tab, mine: list[int]) -> None:
        asked_s = time.monotonic()
        try:
            with self._journal.stopping(self._running(mine)):
                answer = self._client.call("regenerate", lane=lane, tab=tab.tab_id)
        except RefusedError as error:
            if "there is no answer to generate again" not in str(error):
                raise
            self._journal.count("nothing to regenerate")
            return
        mine += self._journal.submitted("lane", answer["ids"], asked_s, None)

    def _tab_looks(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        """Inspects blocks, as clicks on the block map do."""
        for block in seeded.sample(tab.blocks, min(3, len(tab.blocks))) or [1]:
            self._client.get(f"/ui/block/{block}?tab={tab.tab_id}")

    def _tab_stops(self, seeded: random.Random, tab: Tab, mine: list[int]) -> None:
        if not mine:
            return
        with self._journal.stopping(mine):
            if seeded.random() < 0.5:
                self._client.call("stop", tab=tab.tab_id)
            else:
                self._client.call("stop", ids=mine[-4:])

    def _read_to_the_end(self, tab: Tab) -> None:
        tab.hidden = False
        until = time.monotonic() + TIMEOUT_S
        while tab.waiting and time.monotonic() < until:
            time.sleep(0.1)

    @staticmethod
    def _running(mine: Sequence[int]) -> list[int]:
        """The newest requests of a tab, which may still be running."""
        return list(mine[-80:])

    # Programs

    def _chat(self, seeded: random.Random) -> None:
        self._one_chat(self._client.call, seeded)

    def _queued_chat(self, seeded: random.Random) -> None:
        self._one_chat(self._client.call_queued, seeded)

    def _one_chat(self, call: Callable[..., Any], seeded: random.Random, **more: Any) -> None:
        asked = {"prompt": seeded.choice(QUESTIONS), "max_new_tokens": seeded.choice((4, 60, 120)), **more}
        if seeded.random() < 0.4:
            asked |= {"temperature": 0.8, "seed": seeded.randrange(100), "stop": ["token"]}
        try:
            text = call("chat", **asked)
        except RefusedError as error:
            self._journal.refused("/chat", str(error))
            return
        self._journal.count("chats answered")
        if not isinstance(text, str):
            self._journal.complain(f"/chat answered {text!r}")

    def _conversation(self, seeded: random.Random) -> None:
        said = [{"role": "user" if n % 2 == 0 else "assistant", "content": seeded.choice(QUESTIONS)} for n in range(5)]
        self._one_chat(self._client.call, seeded, messages=said, system="Be brief.")

    def _leave(self, seeded: random.Random) -> None:
        """A client that disconnects in the middle of its answer."""
        asked = {
            "prompt": seeded.choice(QUESTIONS),
            "max_new_tokens": 1500,
            "temperature": 2.0,
            "seed": seeded.randrange(1000),
        }
        if seeded.random() < 0.5:
            self._client.leave("chat", seeded.uniform(0.1, 1.0), **asked)
            self._journal.count("chats left")
            return
        answer = self._client.call_queued("chat", leave_after=1, **asked)
        self._journal.count("chats left" if answer is None else "chats answered")

    def _submit(self, seeded: random.Random) -> None:
        most = seeded.choice((1, 16, 100, 700))
        ids = self._send("submit", "api", most, prompt=seeded.choice(QUESTIONS), max_new_tokens=most, ignore_eos=True)
        if ids and seeded.random() < 0.3:
            self._journal.pause(seeded.uniform(0, 0.3))
            with self._journal.stopping(ids):
                self._client.call("stop", ids=ids)

    def _burst(self, seeded: random.Random) -> None:
        ids = self._one_burst(seeded, "")
        if ids and seeded.random() < 0.2:
            self._journal.pause(seeded.uniform(0, 1))
            doomed = seeded.sample(ids, (len(ids) + 1) // 2)
            with self._journal.stopping(doomed):
                self._client.call("stop", ids=doomed)

    def _one_burst(self, seeded: random.Random, tab_id: str) -> list[int]:
        most = seeded.choice((16, 32))
        asked = {
            "size": seeded.choice((1, 2, 4, 8, 8, 20, 20, 64)),
            "kind": seeded.choice(KINDS),
            "max_new_tokens": most,
        }
        if seeded.random() < 0.5:
            asked["seed"] = seeded.randrange(1000)
        return self._send("burst", "burst", most, tab=tab_id, **asked)

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
        """Turn all knobs back to their defaults."""
        defaults: dict[str, Any] = {
            "max_batch_size": 32, "prefill_max_tokens": None, "prefill_max_batch_size": None, "step_max_tokens": None,
            "chunked_prefill": True, "prefix_cache": True, "same_step_sharing": True, "batched_append": True,
            "admission": "queued", "slow_motion": 1.0,
        }  # fmt: skip
        self._client.call("set_knobs", knobs=json.dumps(defaults))

    def _stop_all(self, seeded: random.Random) -> None:
        with self._journal.stopping(None):
            self._journal.count("stopped by stop all", self._client.call("stop"))

    # The rest

    def _experiment(self, seeded: random.Random) -> None:
        body = {**seeded.choice(EXPERIMENTS), "seed": seeded.randrange(5)}
        with self._lab:
            status, answer = self._client.post("/ui/lab/run", body)
            if status != 200:
                raise RefusedError(str(json.loads(answer)))
            stopper = threading.Timer(seeded.uniform(0.5, 5), self._client.post, ("/ui/lab/stop", {}))
            if seeded.random() < 0.35:
                stopper.start()
            try:
                self._wait_for_lab()
            finally:
                stopper.cancel()
            job = json.loads(self._client.get(f"/ui/lab/job?id={json.loads(answer)['job']}")[1])
            if job["result"]:
                self._client.get(f"/ui/lab/result/{job['result']}/report.html")
            self._journal.count(f"lab runs {job['state']}")
            if job["state"] == "error":
                self._journal.complain(f"the lab failed: {job['error']}")

    def _wait_for_lab(self) -> None:
        """Wait until the lab has released the live engine."""
        until = time.monotonic() + TIMEOUT_S
        while json.loads(self._client.get("/ui/delta?since=0")[1])["lab"]:
            if time.monotonic() > until:
                self._journal.complain(f"the lab had not ended after {TIMEOUT_S:g} s")
                return
            self._journal.pause(0.5) and time.sleep(0.5)

    def warm_up(self) -> None:
        """Do once what loads code on first use, while the recording is still small."""
        for file in EXPORTS:
            self._one_export(file)

    def _download(self, seeded: random.Random) -> None:
        self._one_export("recording.jsonl")

    def _export(self, seeded: random.Random) -> None:
        self._one_export(seeded.choice(EXPORTS))

    def _one_export(self, file: str) -> None:
        status, body = self._client.get(f"/ui/export/{file}")
        if status != 200 or not body:
            self._journal.complain(f"/ui/export/{file} answered {status}")

    def _bad(self, seeded: random.Random) -> None:
        endpoint, arguments = seeded.choice(BAD)
        try:
            answer = self._client.call(endpoint, **arguments)
        except RefusedError as error:
            if "Traceback" in str(error) or not str(error).strip():
                self._journal.complain(f"/{endpoint} refused {arguments} with {error}")
            return
        self._journal.complain(f"/{endpoint} took {str(arguments)[:80]} and answered {str(answer)[:80]}")

    def _visit(self, seeded: random.Random) -> None:
        self._client.get(seeded.choice(ROUTES))
