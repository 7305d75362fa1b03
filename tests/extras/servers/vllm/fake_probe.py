"""A stand-in for the probe inside vLLM: its sockets, with messages written by hand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

LIMITS = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "long_prefill_token_threshold": 0, "prompt_tokens": 2048}
NUM_BLOCKS = 8


def snapshot_fields(**fields: Any) -> dict[str, Any]:
    """A snapshot of an idle vLLM, without its number and time."""
    return {
        "missing": {}, "block_size": 16, "num_blocks": NUM_BLOCKS, "rank": 0,
        "limits": dict(LIMITS), "most": {**LIMITS, "long_prefill_token_threshold": 2048},
        "settings": {"enable_prefix_caching": True, "dtype": "bfloat16", "policy": "priority", "max_model_len": 512},
        "requests": [], "pool": [], "running": 0, "waiting": {"": 0}, "free": NUM_BLOCKS, "cached": 0, **fields,
    }  # fmt: skip


def step_fields(number: int, end_ns: int, *entries: Sequence[Any], **fields: Any) -> dict[str, Any]:
    """A step of 10 ms; entries without drafts may end with their prompts' lengths."""
    return {
        "step": number, "schedule": [end_ns - 10_000_000, end_ns - 9_000_000], "output": [end_ns, end_ns + 1000],
        "entries": [[*entry, 0, 0][:6] for entry in entries], "new": [], "resumed": [], "blocks": {}, "changed": [],
        "ended": [], "preempted": [], "tokens": {}, "running": len(entries), "waiting": {"": 0}, "free": NUM_BLOCKS,
        "cached": 0, **fields,
    }  # fmt: skip


class FakeProbe:
    """Publishes steps and answers orders as the real one does.

    Args:
        port: of the steps; a free one by default. That for orders is the next one.
        key: that clients need.
        ahead_ns: how far vLLM's clock is ahead of ours.
        boot: names this start of vLLM.

    Attributes:
        snapshot: what it answers when it is asked for one, besides ``n`` and ``boot``.
        orders: all that it was asked, but for the time.
        refusal: what it answers to everything, if anything.
        is_stuck: whether it answers nothing at all.
        has_orders: whether it has been asked anything since this was last set.
    """

    def __init__(self, port: int = 0, key: str | None = None, *, ahead_ns: int = 0, boot: str = "first") -> None:
        self.boot, self.n, self.step, self.ahead_ns = boot, 0, 0, ahead_ns
        self.orders: list[dict[str, Any]] = []
        self.refusal: str | None = None
        self.is_stuck = self.has_orders = False
        self.snapshot = snapshot_fields()
        self._context = zmq.Context()
        self._authenticator = None if key is None else ThreadAuthenticator(self._context)
        if self._authenticator is not None:
            self._authenticator.start()
            self._authenticator.configure_plain(domain="*", passwords={"roseplay": key or ""})
        self._lock = threading.Lock()
        self._steps, self._orders, self.port = self._bind(port, key)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _bind(self, port: int, key: str | None) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], int]:
        """Bind both sockets, at two adjacent ports."""
        while True:
            sockets = [self._context.socket(kind) for kind in (zmq.PUB, zmq.REP)]
            for socket in sockets:
                socket.linger, socket.plain_server = 0, key is not None
            try:
                sockets[0].bind(f"tcp://127.0.0.1:{port or '*'}")
                bound = int(sockets[0].last_endpoint.rsplit(b":", 1)[1])
                sockets[1].bind(f"tcp://127.0.0.1:{bound + 1}")
                return sockets[0], sockets[1], bound
            except zmq.ZMQError:
                for socket in sockets:
                    socket.close()
                time.sleep(0.01)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def now_ns(self) -> int:
        return time.perf_counter_ns() + self.ahead_ns

    # -- what it publishes

    def publish(self, kind: str, **fields: Any) -> None:
        self.lose()
        self.send(json.dumps({"n": self.n, "boot": self.boot, "kind": kind, **fields}).encode())

    def lose(self) -> None:
        """Count a message that nobody gets."""
        self.n += 1

    def send(self, data: bytes) -> None:
        with self._lock:
            self._steps.send(data)

    def publish_step(self, *entries: Sequence[Any], **fields: Any) -> dict[str, Any]:
        """Publish the next step, see ``step_fields``."""
        self.step += 1
        step = step_fields(self.step, self.now_ns(), *entries, **fields)
        self.publish("step", **step)
        return step

    # -- orders

    def _answer(self) -> None:
        while not self._ending.is_set():
            if not self._orders.poll(20):
                continue
            self.has_orders = True
            if not self.is_stuck:
                self._orders.send(json.dumps(self._reply(json.loads(self._orders.recv()))).encode())

    def _reply(self, order: dict[str, Any]) -> dict[str, Any]:
        if self.refusal is not None:
            return {"error": self.refusal}
        now = {"now_ns": self.now_ns(), "n": self.n, "boot": self.boot}
        if order == {"ask": "clock"}:
            return now
        self.orders.append(order)
        if order == {"ask": "snapshot"}:
            return {**self.snapshot, **now, "step": self.step}
        if "set" in order:
            self.set_limits(**order["set"])
            return {"limits": self.snapshot["limits"]}
        return {"cleared": not self.snapshot["running"]}

    def set_limits(self, **changes: int) -> None:
        self.snapshot["limits"] = {**self.snapshot["limits"], **changes}
        self.publish("limits", limits=self.snapshot["limits"])

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(0)


@contextmanager
def probe(**options: Any) -> Iterator[FakeProbe]:
    fake = FakeProbe(**options)
    try:
        yield fake
    finally:
        with suppress(zmq.ZMQError):
            fake.close()
