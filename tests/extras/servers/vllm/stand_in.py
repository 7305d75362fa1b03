"""What the probe reads of vLLM, in a small scheduler of our own. Any attribute of it can be taken away."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import ModuleType
from typing import Any

import pytest

BLOCK = 4


class Reads:
    """The attributes that have been read, by the kind of thing that has them, and those that are not there."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.removed: set[tuple[str, str]] = set()


class Part:
    """Something of vLLM's. The stand-in itself reaches around ``reads``, by ``vars``."""

    def __init__(self, kind: str, reads: Reads, **values: Any) -> None:
        vars(self).update(values, kind=kind, reads=reads)

    def __getattribute__(self, name: str) -> Any:
        values = object.__getattribute__(self, "__dict__")
        if not name.startswith("__"):
            place = values["kind"], name
            values["reads"].seen.add(place)
            if place in values["reads"].removed:
                raise AttributeError(f"{place[0]!r} object has no attribute {name!r}")
        return object.__getattribute__(self, name)


class FullAttentionSpec:
    """vLLM's name for the blocks of layers that attend to everything."""


class Scheduler(Part):
    """Continuous batching as vLLM does it: requests that run come first, the newest of them is preempted.

    It asserts what vLLM asserts. Sampled tokens count up from 100, and of two draft tokens one is accepted.
    """

    def __init__(self, vllm_config: Any, *, blocks: int = 40, drafts: int = 0) -> None:
        reads = vars(vllm_config)["reads"]

        def part(kind: str, **values: Any) -> Part:
            return Part(kind, reads, **values)

        pool_blocks = [part("block", block_id=i, ref_cnt=0, block_hash=None, is_null=i == 0) for i in range(blocks)]
        pool = part("pool", blocks=pool_blocks, get_num_free_blocks=lambda: len(self_values["free"]))
        super().__init__(
            "scheduler",
            reads,
            vllm_config=vllm_config,
            kv_cache_manager=part("manager", block_pool=pool),
            kv_cache_config=part("kv_cache_config", kv_cache_groups=[part("group", kv_cache_spec=FullAttentionSpec())]),
            block_size=BLOCK,
            num_spec_tokens=drafts,
            max_num_running_reqs=8,
            max_num_active_reqs=8,
            max_num_scheduled_tokens=32,
            requests={},
            running=[],
            deferred_waiting=set(),
            part=part,
            queue=deque(),
            free=deque(range(1, blocks)),
            owned={},
            finished=set(),
        )
        self_values = vars(self)

    def add(self, name: str, prompt: int, output: int, *, grammar: bool = False, seed: int | None = None) -> None:
        values = vars(self)
        status = "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR" if grammar else "WAITING"
        request = values["part"](
            "request",
            request_id=name,
            num_prompt_tokens=prompt,
            num_tokens=prompt,
            num_computed_tokens=0,
            num_output_tokens=0,
            num_output_placeholders=0,
            arrival_time=time.time() - 1,
            priority=0,
            skip_reading_prefix_cache=False,
            block_hashes=[bytes([n]) * 32 for n in range(1, prompt // BLOCK + 1)],
            sampling_params=values["part"]("sampling_params", seed=seed),
            status=values["part"]("status", name=status),
            is_finished=lambda: False,
            most=output,
        )
        values["requests"][name] = request
        values["queue"].append(request)
        if grammar:
            values["deferred_waiting"].add(request)

    def compiled(self) -> None:
        """The grammars are ready."""
        vars(self)["deferred_waiting"].clear()

    def get_request_counts(self) -> tuple[int, int]:
        return len(vars(self)["running"]), len(vars(self)["queue"])

    def _release(self, name: str) -> None:
        values = vars(self)
        for block in values["owned"].pop(name, []):
            vars(self._block(block))["ref_cnt"] -= 1
            values["free"].append(block)

    def _block(self, block: int) -> Part:
        return vars(vars(vars(self)["kv_cache_manager"])["block_pool"])["blocks"][block]

    def finish(self, name: str) -> None:
        """Ends a request whose client has left."""
        values = vars(self)
        request = values["requests"].pop(name)
        values["running"][:] = [other for other in values["running"] if other is not request]
        if request in values["queue"]:
            values["queue"].remove(request)
        self._release(name)
        values["finished"].add(name)

    def _allocate(self, name: str, tokens: int) -> list[int] | None:
        """New blocks, so that a request has room for so many tokens; None if there are too few."""
        values = vars(self)
        blocks = values["owned"].setdefault(name, [])
        new = -(-tokens // BLOCK) - len(blocks)
        if new > len(values["free"]):
            return None
        given = [values["free"].popleft() for _ in range(new)]
        for block in given:
            vars(self._block(block)).update(ref_cnt=1, block_hash=None)
        blocks += given
        for block in blocks[: tokens // BLOCK]:
            vars(self._block(block))["block_hash"] = "hash"
        return given

    def schedule(self, throttle: bool = False) -> Part:
        values = vars(self)
        part, running, queue = values["part"], values["running"], values["queue"]
        budget = values["max_num_scheduled_tokens"]
        config = vars(vars(values["vllm_config"])["scheduler_config"])
        threshold = config["long_prefill_token_threshold"] if len(running) + len(queue) > 1 else 0
        scheduled: dict[str, int] = {}
        drafts: dict[str, list[int]] = {}
        new, resumed, cached, preempted = [], [], [], set()

        def wanted(request: dict[str, Any]) -> int:
            left = request["num_tokens"] - request["num_computed_tokens"]
            extra = values["num_spec_tokens"] if left == 1 else 0
            return min(left + extra, budget, threshold or budget)

        index = 0
        while index < len(running) and budget > 0:
            request = vars(running[index])
            tokens, name = wanted(request), request["request_id"]
            if tokens == 0:  # its output is still to come
                index += 1
                continue
            given = self._allocate(name, request["num_computed_tokens"] + tokens)
            while given is None:
                victim = vars(running.pop())
                self._release(victim["request_id"])
                victim["num_computed_tokens"], victim["preempted"] = 0, True
                preempted.add(victim["request_id"])
                queue.appendleft(values["requests"][victim["request_id"]])
                if victim is request:
                    break
                given = self._allocate(name, request["num_computed_tokens"] + tokens)
            if given is None:
                break
            scheduled[name], budget, index = tokens, budget - tokens, index + 1
            cached.append((name, (given,) if given else None))
        while not preempted and budget > 0 and queue and len(running) < values["max_num_active_reqs"]:
            request = vars(queue[0])
            name = request["request_id"]
            if queue[0] in values["deferred_waiting"]:
                break
            tokens = wanted(request)
            if request["num_tokens"] > BLOCK * len(values["free"]) or self._allocate(name, tokens) is None:
                break
            running.append(queue.popleft())
            blocks = (list(values["owned"][name]),)
            if request.get("preempted"):
                resumed.append(name)
                cached.append((name, blocks))
            else:
                new.append(part("new", req_id=name, block_ids=blocks))
            scheduled[name], budget = tokens, budget - tokens
        assert sum(scheduled.values()) <= values["max_num_scheduled_tokens"]
        assert len(running) <= values["max_num_running_reqs"]
        for name, tokens in scheduled.items():
            request = vars(values["requests"][name])
            if values["num_spec_tokens"] and request["num_tokens"] - request["num_computed_tokens"] == 1 and tokens > 1:
                drafts[name] = [7] * (tokens - 1)
            request["num_computed_tokens"] += tokens
        finished, values["finished"] = values["finished"], set()
        return part(
            "output",
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=part(
                "cached",
                req_ids=[name for name, _ in cached],
                new_block_ids=[blocks for _, blocks in cached],
                resumed_req_ids=set(resumed),
            ),
            scheduled_spec_decode_tokens=drafts,
            finished_req_ids=finished,
            preempted_req_ids=preempted,
        )

    def execute(self, output: Part) -> Part:
        """The model: one token for each request whose prompt is computed, and one more for two draft tokens."""
        rows = []
        for name in vars(output)["num_scheduled_tokens"]:
            request = vars(vars(self)["requests"][name])
            drafts = len(vars(output)["scheduled_spec_decode_tokens"].get(name, ()))
            done = request["num_computed_tokens"] - drafts >= request["num_tokens"]
            count = (1 + (drafts > 1)) if done else 0
            rows.append([100 + request["num_output_tokens"] + i for i in range(count)])
        names = list(vars(output)["num_scheduled_tokens"])
        index = {name: row for row, name in enumerate(names)}
        return vars(self)["part"]("sampled", sampled_token_ids=rows, req_id_to_index=index)

    def update_from_output(self, output: Part, sampled: Part) -> dict[int, Part]:
        values, rows = vars(self), []
        for name, row in vars(sampled)["req_id_to_index"].items():
            tokens = vars(sampled)["sampled_token_ids"][row]
            if name not in values["requests"]:
                continue
            request = vars(values["requests"][name])
            drafts = len(vars(output)["scheduled_spec_decode_tokens"].get(name, ()))
            request["num_computed_tokens"] -= drafts - max(0, len(tokens) - 1)
            tokens = tokens[: request["most"] - request["num_output_tokens"]]
            request["num_tokens"] += len(tokens)
            request["num_output_tokens"] += len(tokens)
            ended = request["num_output_tokens"] == request["most"]
            if tokens:
                reason = "length" if ended else None
                rows.append(values["part"]("row", request_id=name, new_token_ids=tokens, finish_reason=reason))
            if ended:
                self.finish(name)
        return {0: values["part"]("outputs", outputs=rows)}

    def reset_prefix_cache(self) -> bool:
        values = vars(self)
        if values["owned"]:
            return False
        for block in values["free"]:
            vars(self._block(block))["block_hash"] = None
        return True

    def shutdown(self) -> None:
        vars(self)["has_shut_down"] = True


class AsyncScheduler(Scheduler):
    """The other one that vLLM has."""


def config(reads: Reads, *, asynchronous: bool = False, rank: int = 0, device: str = "cuda", **scheduler: Any) -> Part:
    """Returns vLLM's configuration."""
    settings = {
        "async_scheduling": asynchronous,
        "enable_chunked_prefill": True,
        "disable_chunked_mm_input": False,
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        **scheduler,
    }
    parallel = {"data_parallel_size": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    model = {"model": "tiny", "served_model_name": "tiny", "max_model_len": 64, "dtype": "torch.bfloat16"}
    return Part(
        "config",
        reads,
        scheduler_config=Part("scheduler_config", reads, **settings),
        parallel_config=Part("parallel_config", reads, data_parallel_index=rank, **parallel),
        model_config=Part("model_config", reads, quantization="fp8", **model),
        cache_config=Part("cache_config", reads, enable_prefix_caching=True, cache_dtype="auto"),
        device_config=Part("device_config", reads, device_type=device),
        speculative_config=Part("speculative_config", reads, method="ngram"),
        diffusion_config=None,
    )


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-in where the probe finds vLLM."""
    for name, kind in (("scheduler", Scheduler), ("async_scheduler", AsyncScheduler)):
        module = ModuleType(name)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, f"vllm.v1.core.sched.{name}", module)
    for package in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        module = ModuleType(package)
        vars(module).update(__path__=[], __version__="0.32.0")
        monkeypatch.setitem(sys.modules, package, module)
