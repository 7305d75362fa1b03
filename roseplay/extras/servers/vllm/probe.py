"""The probe inside a vLLM as its client uses it: it is followed in a thread, and changes vLLM's limits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roseplay.clock import Clock
from roseplay.config import Knobs
from roseplay.core.info import EngineInfo
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.errors import EngineError, EngineStartError
from roseplay.engine.telemetry import Telemetry
from roseplay.engine.ticker import Ticker
from roseplay.extras.servers.address import StepsAddress
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.timings import Timings
from roseplay.extras.servers.vllm.messages import Limits, Reply, Snapshot, Step, message_in
from roseplay.extras.servers.vllm.sockets import Ask, Sockets
from roseplay.extras.servers.vllm.steps import Steps
from roseplay.formats.text import one_line
from roseplay.settings import Whole, settings_of

logger = logging.getLogger(__name__)

# The limits of vLLM that are knobs here, by the knob, and the probe's own.
LIMITS = {name: knob.vllm for name, knob in settings_of(Knobs).items() if knob.vllm in Limits.model_fields}
LIMITS["prefill_max_tokens"] = "prompt_tokens"
# What the probe tells, by capability: the fields of its messages without which it is missing.
_TOLD = {
    "steps": ("entries", "schedule", "output"),
    "blocks": ("blocks", "changed", "pool"),
    "cached_tokens": ("new",),
    "server_times": ("new",),
    "queue": ("running", "waiting"),
    "kv_usage": ("free", "cached", "pool"),
    "knobs": ("limits",),
    "clear_cache": ("clear",),
}
_ROUND_TRIPS = 8
_TOLD_S = 1.0  # for a change of limits to be told among the steps


class Probe:
    """A connection to the probe. What it has lost, it asks for again; a vLLM that ends may come back.

    Args:
        number: returns a number for a request of another client.
        changed: called, on the thread, when ``knobs`` or ``describe`` may return something else.

    Raises:
        EngineStartError: there is no such probe, or it refuses the key.
    """

    def __init__(
        self,
        address: StepsAddress,
        live: RemoteStreams,
        telemetry: Telemetry,
        clock: Clock,
        timings: Timings,
        *,
        number: Callable[[], int],
        changed: Callable[[], object],
    ) -> None:
        self._steps = Steps(live, telemetry, clock, number)
        self._clock, self._timings, self._changed = clock, timings, changed
        self._wrong: str | None = None
        self._has_skipped = False
        self._n = self._attached_ns = self._heard_ns = 0
        self._boot = ""
        self._steering = threading.Lock()
        self._leased: dict[str, Any] | None = None  # an order that is renewed
        self.shares = True  # otherwise each request needs a salt of its own, as vLLM's cache cannot be switched off
        self._renewed_s = 0.0
        try:
            self._sockets = Sockets(address, timings.steps_reply_s)
        except ValueError as error:
            raise EngineStartError(f"--steps: {one_line(error)}") from None
        try:
            self._attach()
        except (EngineError, ValueError) as error:
            self._sockets.close()
            raise EngineStartError(f"--steps: {one_line(error)}") from None
        failure = "the steps of vLLM could not be read"
        self._ticker = Ticker("roseplay-steps", self._tick, 0.0, failure, at_end=self._sockets.close)
        self._ticker.start()

    def close(self, timeout: float) -> None:
        """End the thread. Idempotent."""
        self._sockets.closing.set()
        self._ticker.close(timeout)

    # -- what it tells of vLLM

    def capabilities(self, without: Capabilities) -> Capabilities:
        """Returns those of a server that has these ``without`` the probe."""
        if (wrong := self._wrong) is not None:
            return Capabilities.without({**without.reasons, **dict.fromkeys(("steps", "blocks", "knobs"), wrong)})
        missing = self._snapshot.missing
        reasons = {name: reason for name, reason in without.reasons.items() if name not in _TOLD}
        absent = {name: missing[field] for name, fields in _TOLD.items() for field in fields if field in missing}
        return Capabilities.without({**reasons, **{name: one_line(reason) for name, reason in absent.items()}})

    def describe(self, info: EngineInfo) -> EngineInfo:
        """Returns what is known of a server, with what the probe knows better."""
        snapshot = self._snapshot
        dtype, longest, caches = map(snapshot.settings.get, ("dtype", "max_model_len", "enable_prefix_caching"))
        return replace(
            info,
            dtype=dtype if isinstance(dtype, str) else info.dtype,
            server_settings={**info.server_settings, **{k: v for k, v in snapshot.settings.items() if v is not None}},
            block_size=snapshot.block_size,
            num_blocks=info.num_blocks if snapshot.num_blocks is None else snapshot.num_blocks + 1,
            max_model_len=longest if isinstance(longest, int) else info.max_model_len,
            knob_limits={**_knob_values(snapshot.most), **({"prefix_cache": 1} if caches is True else {})},
        )

    @property
    def model(self) -> str | None:
        """The name by which vLLM serves its model, if it is known."""
        name = self._snapshot.settings.get("served_model_name")
        return name if isinstance(name, str) else None

    @property
    def on_cpu(self) -> bool:
        """Whether vLLM computes on a CPU."""
        return self._snapshot.settings.get("device_type") == "cpu"

    @property
    def knobs(self) -> Knobs:
        """vLLM's limits as knobs, beside those of its settings that have equals here."""
        snapshot = self._snapshot
        fixed = {
            "prefix_cache": self.shares and snapshot.settings.get("enable_prefix_caching"),
            "chunked_prefill": snapshot.settings.get("enable_chunked_prefill"),
            "scheduling_policy": snapshot.settings.get("policy"),
            "overlap": snapshot.settings.get("async_scheduling"),
            "same_step_sharing": False,
        }
        known = {name: value for name, value in fixed.items() if settings_of(Knobs)[name].values.allows(value)}
        return Knobs().changed({**known, **_knob_values(self._steps.limits)})

    @property
    def next_step(self) -> int:
        """The number of the next step that will be told."""
        return self._steps.newest + 1

    # -- orders

    def set_knobs(self, knobs: Knobs, lease_s: float = 0.0) -> None:
        """Set the limits; None is what vLLM was started with. Returns when ``knobs`` has them.

        With ``lease_s``, vLLM gets its former limits back so many seconds after this connection has ended.

        Raises:
            ValueError: vLLM refuses a value.
            EngineError: the probe does not answer.
        """
        unlimited = {**self._snapshot.most.model_dump(), "long_prefill_token_threshold": 0}
        values = {limit: getattr(knobs, name) or unlimited[limit] for name, limit in LIMITS.items()}
        order = {"set": values, "lease_s": lease_s}
        with self._steering:
            self._leased = order if lease_s else None
            limits, until = self._order(order).limits, time.monotonic() + _TOLD_S
            self.shares = knobs.prefix_cache or self._snapshot.settings.get("enable_prefix_caching") is not True
        while self._steps.limits != limits and time.monotonic() < until:
            self._sockets.closing.wait(0.001)  # so that the steps before the change are told before it

    def clear_cache(self) -> bool:
        """Clear the prefix cache; returns whether vLLM has: not while requests hold blocks. Raises as ``set_knobs``."""
        return self._order({"clear": "prefix_cache"}).cleared

    def _order(self, order: Mapping[str, Any]) -> Reply:
        with self._sockets.orders() as ask:
            reply: Reply = ask(order, Reply)
        return reply

    # -- the thread

    def _tick(self) -> None:
        try:
            if self._wrong is not None:
                self._attach()
            self._receive()
            with self._steering:
                if self._leased and time.monotonic() > self._renewed_s + self._leased["lease_s"] / 4:
                    self._renewed_s = time.monotonic()
                    self._order(self._leased)
        except Exception as error:
            if self._wrong is None:
                logger.warning("the steps of vLLM are not known any more: %s", one_line(error))
                self._steps.leave()
            self._wrong = one_line(error)
            if not isinstance(error, EngineError | ValueError):
                raise

    def _receive(self) -> None:
        if (data := self._sockets.receive()) is None:
            if self._clock.now_ns() - self._heard_ns > 1e9 * self._timings.steps_look_s:
                self._look()
            return
        self._heard_ns = self._clock.now_ns()
        try:
            message = message_in(data)
        except ValueError as error:  # if it was one, its number is missing
            if not self._has_skipped:
                logger.warning("a message of the probe in vLLM was skipped: %s", one_line(error))
            self._has_skipped = True
            return
        if message.boot == self._boot and message.n <= self._n:
            return  # the snapshot has it
        if message.boot != self._boot or message.n != self._n + 1:
            self._attach()
            return
        self._n = message.n
        if isinstance(message, Step):
            self._steps.take(message)
        elif message.kind == "reset":
            self._attach(cleared=True)
        elif message.kind == "limits":
            self._steps.limits = message.limits
            self._changed()
        else:
            raise EngineError(f"the probe in vLLM has switched itself off: {message.error}")

    def _look(self) -> None:
        """Ask a probe that is silent: it may have ended, been started again, or told what did not arrive."""
        with self._sockets.orders() as ask:
            if self._steps.offset_ns:
                self._measure(ask)
            newest: Reply = ask({"ask": "clock"}, Reply)
        self._heard_ns = self._clock.now_ns()
        if newest.boot not in ("", self._boot) or newest.n > self._n:
            self._attach()

    def _attach(self, *, cleared: bool = False) -> None:
        """Ask for the state of vLLM, and follow it from there; not too often, as a large pool is long to tell."""
        wait_s = self._timings.steps_again_s - (self._clock.now_ns() - self._attached_ns) / 1e9
        if self._attached_ns and wait_s > 0 and self._sockets.closing.wait(wait_s):
            return
        self._attached_ns = self._clock.now_ns()
        with self._sockets.orders() as ask:
            self._measure(ask)
            self._snapshot: Snapshot = ask({"ask": "snapshot"}, Snapshot)
        same_boot, self._boot = self._snapshot.boot == self._boot, self._snapshot.boot
        self._steps.join(self._snapshot, same_boot=same_boot, cleared=cleared and self._snapshot.n == self._n)
        self._n, self._heard_ns = self._snapshot.n, self._clock.now_ns()
        self._wrong = None
        self._changed()

    def _measure(self, ask: Ask) -> None:
        """Compare the clocks: what answers within the shortest round trip, by our own clock, has the same one."""
        trips = []
        for _ in range(_ROUND_TRIPS):
            sent_ns = self._clock.now_ns()
            theirs_ns = ask({"ask": "clock"}, Reply).now_ns
            took_ns = self._clock.now_ns() - sent_ns
            trips.append((took_ns, sent_ns + took_ns // 2 - theirs_ns))
        took_ns, offset_ns = min(trips)
        if abs(offset_ns) <= took_ns // 2 + 1:
            offset_ns = 0
        elif not self._steps.offset_ns:
            logger.info("vLLM's clock is another: its times are known here to within %.2f ms", took_ns / 2e6)
        self._steps.offset_ns = offset_ns


def _knob_values(limits: Limits) -> dict[str, int]:
    """Returns limits by the knobs' names, within what the knobs can be; not those that are none."""
    values = {}
    for name, limit in LIMITS.items():
        accepted = settings_of(Knobs)[name].values
        assert isinstance(accepted, Whole)
        if value := getattr(limits, limit):
            values[name] = value if accepted.most is None else min(value, accepted.most)
    return values
