"""A scheduler for vLLM (--scheduler-cls roseplay_probe.ProbedScheduler) that tells of its steps and sets its limits.

Steps are published at ROSEPLAY_STEPS (tcp://127.0.0.1:5601 by default; rank r adds 2r to the port), orders answered one port above.
Addresses beyond loopback need ROSEPLAY_STEPS_KEY. After an error the probe puts vLLM's limits back, logs one line and is off.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

LOGGER = logging.getLogger("vllm.roseplay_probe")  # vLLM's handler prints it
REASONS = {"WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar", "WAITING_FOR_REMOTE_KVS": "remote_kv"}
Limit = Literal["max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "prompt_tokens"]
TOKENS, THRESHOLD = "max_num_batched_tokens", "long_prefill_token_threshold"
SETTINGS = """device_config.device_type model_config.served_model_name model_config.max_model_len model_config.dtype
model_config.quantization cache_config.enable_prefix_caching cache_config.cache_dtype scheduler_config.async_scheduling
model_config.model scheduler_config.policy parallel_config.data_parallel_size parallel_config.tensor_parallel_size
parallel_config.pipeline_parallel_size speculative_config.method scheduler_config.enable_chunked_prefill"""


class Order(msgspec.Struct, forbid_unknown_fields=True):  # type: ignore[call-arg]
    ask: Literal["snapshot", "clock"] | None = None
    set: dict[Limit, int] | None = None
    lease_s: Annotated[float, msgspec.Meta(ge=0)] = 0  # after which the limits go back, unless set again; 0 is never
    clear: Literal["prefix_cache"] | None = None


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method that reads vLLM harmless: an error switches the probe off and goes no further."""

    def call(self: Probe, *arguments: Any) -> Any:
        try:
            with self.lock:
                return None if self.error else method(self, *arguments)
        except Exception as error:
            return self.fail(error)

    return call


class Probe:
    """Watches a scheduler, with a lock that is held while vLLM schedules or takes an output, not while the model computes."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.lock, self.error, self.boot = scheduler, threading.RLock(), "", secrets.token_hex(8)
        self.published = self.steps = self.cached = self.scrubbed = 0
        self.missing: dict[str, str] = {}  # fields that this version of vLLM lacks, and why
        self.places: dict[str, tuple[Any, str]] = {}  # the attributes from which vLLM reads its limits in each step
        self.started: dict[str, int] = {}  # the limits then
        self.in_flight: dict[int, tuple[Any, dict[str, Any]]] = {}  # by the id of the scheduler's output, which is kept
        self.progress: dict[str, tuple[int, int]] = {}  # what readers know: cached and computed tokens of a request,
        self.held: dict[str, list[int]] = {}  # the blocks of one that runs,
        self.told: list[int] = []  # and the states of all blocks
        self.ended: set[str] = set()  # since the last schedule(), which names them again
        self.touched: set[int] = set()  # blocks whose state may not be as told
        self.lease: tuple[dict[str, int], float] | None = None  # the limits before it, and its end
        self.sockets: list[zmq.Socket] = []
        self.start()

    @guarded
    def start(self) -> None:
        scheduler, config, self.settings = self.scheduler, self.scheduler.vllm_config, {}
        for part, name in (path.split(".") for path in SETTINGS.split()):
            value = getattr(getattr(config, part, None), name, None)
            self.settings[name] = value if isinstance(value, int | None) else str(value).removeprefix("torch.")
        self.rank = self.optional("rank", lambda: config.parallel_config.data_parallel_index, 0)
        self.block_size = self.optional("block_size", lambda: scheduler.block_size, 1)
        self.settings["kv_specs"] = self.optional(
            "hashes", lambda: str([type(g.kv_cache_spec).__name__ for g in scheduler.kv_cache_config.kv_cache_groups])
        )
        self.per_decode = 1 + self.optional("drafted", lambda: scheduler.num_spec_tokens, 0)
        # vLLM asserts that no more requests run than max_num_running_reqs; max_num_active_reqs only limits admission.
        seqs = "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        self.places = {TOKENS: (scheduler, "max_num_scheduled_tokens"), "max_num_seqs": (scheduler, seqs)}
        self.places[THRESHOLD] = config.scheduler_config, THRESHOLD
        self.started = {name: getattr(*place) for name, place in self.places.items()}
        self.limits = self.started = self.started | {"prompt_tokens": self.started[TOKENS]}
        self.least, self.most = self.started | {"max_num_seqs": 1}, self.started.copy()
        if config.scheduler_config.enable_chunked_prefill and not config.scheduler_config.disable_chunked_mm_input:
            self.least |= {TOKENS: 1, THRESHOLD: 0, "prompt_tokens": 1}  # elsewhere, prompts or images stay whole
            self.most[THRESHOLD] = max(self.started[TOKENS], self.started[THRESHOLD])
        self.open(os.environ.get("ROSEPLAY_STEPS", "tcp://127.0.0.1:5601"), os.environ.get("ROSEPLAY_STEPS_KEY"))
        self.reset(True)
        self.around("schedule", self.scheduled, before=self.limit_step)
        self.around("update_from_output", self.updated)
        self.around("reset_prefix_cache", self.reset)
        self.around("shutdown", self.close)

    def around(self, name: str, after: Callable[..., Any], before: Callable[[], Any] = lambda: None) -> None:
        """Calls something before and after a method of the scheduler, whose errors pass."""
        method = getattr(self.scheduler, name)

        def call(*arguments: Any, **named: Any) -> Any:
            with self.lock:
                before()
                begin_ns = time.perf_counter_ns()
                result = method(*arguments, **named)
                after(result, [begin_ns, time.perf_counter_ns()], *arguments)
                return result

        setattr(self.scheduler, name, call)

    def optional(self, name: str, read: Callable[..., Any], default: Any = None, *of: Any) -> Any:
        """Returns what is read; or the default if this version of vLLM lacks an attribute, which is noted once."""
        if name not in self.missing:
            try:
                return read(*of)
            except AttributeError as error:
                self.missing[name] = str(error)
        return default

    def open(self, address: str, key: str | None) -> None:
        """Binds the sockets and starts to answer orders; raises ``ValueError`` if that would be open to everybody."""
        url = urlsplit(address)
        if url.scheme != "tcp" or not url.hostname or not url.port:
            raise ValueError(f"ROSEPLAY_STEPS must be tcp://ADDRESS:PORT, not {address}")
        host = "127.0.0.1" if url.hostname == "localhost" else url.hostname
        if not key and (host == "*" or not ipaddress.ip_address(host).is_loopback):
            raise ValueError(f"{host} can be reached from elsewhere: set ROSEPLAY_STEPS_KEY, or take 127.0.0.1")
        context = zmq.Context()
        if key:
            (authenticator := ThreadAuthenticator(context)).start()
            authenticator.configure_plain(passwords={"roseplay": key})
        self.sockets = [context.socket(zmq.PUB), context.socket(zmq.REP)]
        for port, socket in enumerate(self.sockets, url.port + 2 * self.rank):
            socket.set_hwm(1000)  # messages kept for a reader that does not keep up, which then loses some
            socket.linger, socket.maxmsgsize, socket.ipv6, socket.plain_server = 0, 4096, ":" in host, bool(key)
            socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        threading.Thread(target=self.answer_orders, name="roseplay-orders", daemon=True).start()

    def fail(self, error: Exception) -> None:
        """Switches the probe off for good. It then answers every order with the reason."""
        with self.lock:
            if self.error:
                return
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            LOGGER.warning("roseplay's probe is off, and vLLM serves without it: %s", self.error)
            for name, value in self.started.items():
                with contextlib.suppress(Exception):
                    setattr(*self.places[name], value)
            with contextlib.suppress(Exception):
                self.publish({"kind": "off", "error": self.error})
            self.progress, self.held, self.in_flight, self.touched, self.told = {}, {}, {}, set(), []

    def publish(self, message: dict[str, Any]) -> None:
        text = msgspec.json.encode({"n": self.published + 1, "boot": self.boot, **message}, enc_hook=int)  # of NumPy
        self.sockets[0].send(text, zmq.NOBLOCK)
        self.published += 1

    @guarded
    def limit_step(self) -> None:
        """Sets the next step's limits, so that each request that runs can compute; ``prompt_tokens`` is beside decodes."""
        if self.limits is self.started:
            return
        seeds = any(getattr(r.sampling_params, "seed", None) is not None for r in self.scheduler.requests.values())
        whole = self.started if seeds and self.settings["device_type"] == "cpu" else {}  # vLLM ends there otherwise
        values, running, most = self.limits | whole, self.scheduler.running, self.started[TOKENS]
        values["max_num_seqs"] = max(self.limits["max_num_seqs"], len(running))
        left = [r.num_tokens + getattr(r, "num_output_placeholders", 0) - r.num_computed_tokens for r in running]
        prompts = sum(number > 1 for number in left)
        decodes = self.per_decode * (len(left) - prompts)
        tokens = max(values[TOKENS], self.per_decode * max(1, len(running)))
        tokens = min(most, tokens, decodes + max(values["prompt_tokens"], prompts))
        if tokens < most and max(left[:-1], default=0) > 1:  # a prompt before others would take the whole step
            share = (tokens - decodes) // prompts
            values[THRESHOLD] = min(values[THRESHOLD] or share, share) or 1
        values[THRESHOLD] = values[THRESHOLD] and max(self.per_decode, values[THRESHOLD])  # drafts stay whole
        for name, place in self.places.items():
            setattr(*place, tokens if name == TOKENS else values[name])
        self.limits = self.started if self.limits == self.started else self.limits

    @guarded
    def scheduled(self, output: Any, span: list[int], *_: Any) -> None:
        """Notes what a step computes, until its output comes."""
        rows = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]  # 0 where a window needs no block
        cached, entries, new = output.scheduled_cached_reqs, [], []
        admitted = {name for name, _ in rows}.union(self.optional("resumed", lambda: cached.resumed_req_ids, ()))
        rows += self.optional("blocks", lambda: zip(cached.req_ids, cached.new_block_ids, strict=True), ())
        drafts = self.optional("drafted", lambda: output.scheduled_spec_decode_tokens, {})
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            before, prompt = request.num_computed_tokens - tokens, request.num_prompt_tokens  # vLLM has added them
            entries.append([name, tokens, before, prompt, len(drafts.get(name, ())), 0])
            if name in admitted:
                age = self.optional("waited", lambda r: int(1e9 * max(0, time.time() - r.arrival_time)), None, request)
                priority = self.optional("priority", lambda r: r.priority, 0, request)
                new.append([name, prompt, before, age, priority, self.optional("hashes", self.hashes, (), request)])
        ended, self.ended = [[name, "abort"] for name in output.finished_req_ids - self.ended], set()
        message = {"kind": "step", "schedule": span, "entries": entries, "new": new, "ended": ended, "tokens": {}}
        message["blocks"] = {name: [id for ids in groups for id in ids if id] for name, groups in rows if groups}
        message["preempted"] = list(self.optional("preempted", lambda: output.preempted_req_ids) or ())
        self.in_flight[id(output)] = output, message

    @guarded
    def updated(self, results: Any, span: list[int], output: Any, sampled: Any) -> None:
        """Publishes a step whose output vLLM has taken."""
        _, message = self.in_flight.pop(id(output))
        for row in (row for outputs in results.values() for row in outputs.outputs):
            if row.new_token_ids:
                message["tokens"][row.request_id] = list(row.new_token_ids)
            if row.finish_reason is not None:
                message["ended"].append([row.request_id, str(row.finish_reason)])
        index = self.optional("accepted", lambda: sampled.sampled_token_ids and sampled.req_id_to_index) or {}
        for name in message["preempted"]:
            self.touched.update(self.held.pop(name, ()))
        message["resumed"] = [name for name, *_ in message["new"] if name in self.progress]
        for name, _, cached, *_ in message["new"]:
            self.progress[name], self.held[name] = (cached, cached), []
        for name, blocks in message["blocks"].items():
            self.held.get(name, []).extend(blocks)  # not there: it has ended while this step was computed
            self.touched.update(blocks)
        for entry in message["entries"]:
            name, tokens, before, _, drafts, _ = entry
            if drafts and name in index:
                entry[5] = max(0, len(sampled.sampled_token_ids[index[name]]) - 1)
            if name in self.progress:
                self.progress[name] = self.progress[name][0], before + tokens - drafts + entry[5]
                if name not in self.scheduler.requests and name not in dict(message["ended"]):
                    message["ended"].append([name, "abort"])  # its client has left meanwhile
            self.touched.update(self.held.get(name, ())[max(0, before - 2 * self.per_decode) // self.block_size :])
        for name, _ in message["ended"]:
            self.ended.add(name)
            self.progress.pop(name, None)
            self.touched.update(self.held.pop(name, ()))
        if message["entries"] or message["ended"] or message["preempted"]:
            self.steps += 1
            pool = self.optional("pool", self.changes, {})
            self.publish({"step": self.steps, "output": span, **message, **pool, **self.queues()})

    def hashes(self, request: Any) -> list[int]:  # of the blocks of a prompt, unless all of it has to be computed
        blocks = () if request.skip_reading_prefix_cache else request.block_hashes[:256]
        return [int.from_bytes(h[:6], "big") for h in blocks]

    def state(self, block: Any) -> int:  # twice the number of requests that hold it, and 1 if prompts can find it
        return 0 if block.is_null else 2 * block.ref_cnt + (block.block_hash is not None)

    def states(self) -> list[int]:
        return [self.state(block) for block in self.scheduler.kv_cache_manager.block_pool.blocks]

    def changes(self) -> dict[str, Any]:
        """Returns the blocks whose state is not as told, and how many no request holds."""
        pool, end = self.scheduler.kv_cache_manager.block_pool, self.scrubbed + 32 + len(self.told) // 512
        # Some blocks in turn, since no step announces that a window has left a block behind, or that a transfer is over.
        self.touched.update(range(self.scrubbed, min(end, len(self.told))))
        self.scrubbed, rows = 0 if end >= len(self.told) else end, []
        for block in self.touched:
            state, told = self.state(pool.blocks[block]), self.told[block]
            if state != told:
                self.cached += (state == 1) - (told == 1)
                self.told[block] = state
                rows.append([block, state >> 1, state & 1])
        self.touched.clear()
        return {"changed": rows, "free": pool.get_num_free_blocks() - self.cached, "cached": self.cached}

    def queues(self) -> dict[str, Any]:
        running, waiting = self.optional("running", lambda: self.scheduler.get_request_counts(), (0, 0))
        states = self.optional("waiting", lambda: [r.status.name for r in list(self.scheduler.deferred_waiting)], ())
        names = [REASONS[state] for state in states if state in REASONS]
        return {"running": running, "waiting": {"": waiting - len(names)} | {name: names.count(name) for name in names}}

    @guarded
    def snapshot(self) -> dict[str, Any]:
        """Returns what a reader needs to continue after the last message."""
        rows, states = [], self.optional("pool", self.states, [])
        for r in (request for request in list(self.scheduler.requests.values()) if not request.is_finished()):
            name, blocks = r.request_id, self.held.get(r.request_id)
            (cached, computed), state = self.progress.get(name, (0, 0)), "waiting" if blocks is None else "running"
            rows.append([name, r.num_prompt_tokens, computed, r.num_output_tokens, state, cached, [*(blocks or ())]])
        about = self.clock() | self.queues() | {"requests": rows, "step": self.steps, "settings": self.settings}
        about |= {"limits": self.limits, "least": self.least, "most": self.most, "missing": self.missing.copy()}
        about |= {"block_size": self.block_size, "num_blocks": len(states) - 1, "cached": states.count(1)}
        about |= {"pool": [[block, state >> 1, state & 1] for block, state in enumerate(states) if state]}
        return about | {"free": states.count(0) - 1}

    def clock(self) -> dict[str, Any]:
        return {"now_ns": time.perf_counter_ns(), "n": self.published, "boot": self.boot, "rank": self.rank}

    @guarded
    def set_limits(self, wished: dict[str, int], lease_s: float = 0) -> dict[str, Any]:
        for name in (name for name, value in wished.items() if not self.least[name] <= value <= self.most[name]):
            return {"error": f"{name} must be {self.least[name]} to {self.most[name]}"}
        self.lease = ((self.lease or [self.limits])[0], time.monotonic() + lease_s) if lease_s > 0 else None
        self.limits = self.limits | wished
        self.publish({"kind": "limits", "limits": self.limits})
        return {"limits": self.limits}

    clear = guarded(lambda self: {"cleared": bool(self.scheduler.reset_prefix_cache())})

    @guarded
    def reset(self, done: Any, *_: Any) -> None:
        if done:
            self.told = self.optional("pool", self.states, [])
            self.cached = self.told.count(1)
            self.publish({"kind": "reset"})

    @guarded
    def close(self, *_: Any) -> None:
        self.error = "vLLM has ended"
        self.sockets.pop(0).close()

    def answer_orders(self) -> None:
        """Answers until the engine ends. What is no order is answered too."""
        orders = self.sockets[1]
        while len(self.sockets) == 2:
            try:
                if self.lease and time.monotonic() > self.lease[1]:
                    self.set_limits(self.lease[0])
                if orders.poll(200):
                    begin, reply = time.monotonic(), self.answer(b"".join(orders.recv_multipart()))
                    orders.send(msgspec.json.encode(reply or {"error": f"the probe is off: {self.error}"}))
                    time.sleep(min(1, 9 * (time.monotonic() - begin)))  # so that vLLM hardly waits for orders
            except Exception as error:
                return self.fail(error)
        orders.close()

    def answer(self, text: bytes) -> dict[str, Any] | None:
        try:
            order = msgspec.json.decode(text, type=Order)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            return {"error": f"not an order: {error}"}
        if (order.ask, order.set or None, order.clear).count(None) != 2 or (order.lease_s and not order.set):
            return {"error": "an order has one of ask, set and clear, and lease_s only beside set"}
        if order.ask:
            return self.snapshot() if order.ask == "snapshot" else None if self.error else self.clock()
        return self.set_limits(order.set, order.lease_s) if order.set else self.clear()


def ProbedScheduler(vllm_config: Any, *arguments: Any, **named: Any) -> Any:
    """Returns the scheduler that vLLM would have made, with a probe."""
    diffusion = getattr(vllm_config, "diffusion_config", None)
    asynchronous = getattr(getattr(vllm_config, "scheduler_config", None), "async_scheduling", True)
    module = "diffusion_scheduler" if diffusion else "async_scheduler" if asynchronous else "scheduler"
    name = f"{'Diffusion' if diffusion else ''}{'Async' if asynchronous else ''}Scheduler"
    scheduler = getattr(importlib.import_module(f"vllm.v1.core.sched.{module}"), name)(vllm_config, *arguments, **named)
    Probe(scheduler)
    return scheduler
