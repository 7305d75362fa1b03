"""Opens and closes engines and prints, as JSON, what they have left behind.

Arguments: a model's directory, how many engines in threads, how many in processes, settings of the first as JSON.
The GPU of those in processes is simulated, so that they import no torch.
"""

import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from roseplay import Engine, SamplingParams
from roseplay.engine.errors import EngineStartError

ANSWER = SamplingParams(max_new_tokens=5, ignore_eos=True)
SIMULATED = {"run_as": "h100", "worker": "process", "block_size": 4, "num_blocks": 50, "max_model_len": 64}
GONE_WITHIN_S = 10.0  # for an ended thread to disappear from the system's list
OURS = ("Engine", "Worker", "ModelRunner", "KVCache", "Scheduler", "Stream")


def main() -> None:
    directory, settings = sys.argv[1], json.loads(sys.argv[4])
    found = {"measured": []}
    for mode, count in (("thread", int(sys.argv[2])), ("process", int(sys.argv[3]))):
        every = max(2, count // 6)  # collecting garbage takes longer than an engine
        for number in range(count):
            how = settings if mode == "thread" else SIMULATED
            with Engine(directory if mode == "thread" else "qwen3-0.6b", **how) as engine:
                answers = {tuple(engine.submit([3 + i] * 9, ANSWER).result(60).token_ids) for i in range(3)}
                assert answers
            engine = None
            if number == 0 and mode == "thread":
                fail_to_start(directory)
            if number % every == 0 or number == count - 1:
                opened = number + 1 + (int(sys.argv[2]) if mode == "process" else 0)
                found["measured"].append({"mode": mode, "engines": opened, **measure(found["measured"])})
    found["closed"] = objects()
    with Engine(directory, **settings):
        found["open"] = objects()
    print(json.dumps(found), flush=True)


def fail_to_start(directory: str) -> None:
    try:
        Engine(directory, kv_cache_memory=1)
    except EngineStartError:
        return
    raise AssertionError("an engine without room for a block has started")


def measure(before: list[dict[str, int]]) -> dict[str, int]:
    gc.collect()
    gc.freeze()  # what was imported takes a second to look at
    usual = min((one["native_threads"] for one in before), default=sys.maxsize)
    until = time.monotonic() + GONE_WITHIN_S
    while native_threads() > usual and time.monotonic() < until:
        time.sleep(0.02)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "memory": resident,
        "threads": sum(thread.name.startswith("roseplay") for thread in threading.enumerate()),
        "native_threads": native_threads(),
        "handles": len(os.listdir("/proc/self/fd")),
        "processes": len(multiprocessing.active_children()),
    }


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def objects() -> dict[str, int]:
    """The number of live engines, models and parts of them."""
    from transformers import PreTrainedModel  # here, where the engine has imported it at less cost

    gc.unfreeze()  # count objects that the collector was told to ignore as well
    gc.collect()
    counts = dict.fromkeys([*OURS, "PreTrainedModel"], 0)
    for kind, number in Counter(map(type, gc.get_objects())).items():
        if str(kind.__module__).startswith("roseplay.") and kind.__name__ in OURS:
            counts[kind.__name__] += number
        elif PreTrainedModel in kind.__mro__:
            counts["PreTrainedModel"] += number
    return counts


if __name__ == "__main__":
    main()
