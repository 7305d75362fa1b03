"""Writes the messages of a real vLLM that ``make test`` reads.

    VLLM=.venv-vllm/bin/vllm .venv/bin/python -m tests.extras.servers.vllm.suite.record

A small pool with n-gram speculation serves a few readers, then a burst with one prefix under a small limit, so that requests
are preempted; one client leaves, and some requests are not ours: their ids have no ``roseplay-``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.extras.servers.vllm.suite import tiny_model
from tests.extras.servers.vllm.suite.probe_reader import Message, Reader, check
from tests.extras.servers.vllm.suite.server import NGRAM, Server, serving, text
from tests.waiting import wait_until

FILE = Path(__file__).parents[1] / "data" / "vllm_steps.jsonl"
FLAGS = ("--max-model-len", "768", "--num-gpu-blocks-override", "26", *NGRAM)


def traffic(server: Server, reader: Reader) -> None:
    clients = [server.start(f"roseplay-{n}", text(20, f"reader {n} "), 120) for n in range(2)]
    reader.order(set={"max_num_batched_tokens": 128})
    clients += [server.start(f"roseplay-{n}", text(80) + f" {n}", 120) for n in range(2, 5)]
    clients += [server.start(f"foreign-{n}", text(80) + f" {n}", 120) for n in range(3)]
    choice = {"structured_outputs": {"choice": ["blue", "red"]}, "ignore_eos": False}
    clients.append(server.start("roseplay-choice", text(10), 10, **choice))
    for client in clients:
        client.result()
    reader.order(set={"max_num_batched_tokens": 2048})
    body = {"model": "tiny", "prompt": text(30, "leaver "), "max_tokens": 600, "stream": True, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body, headers={"X-Request-Id": "roseplay-left"}) as reply:
        next(reply.iter_lines())
    wait_until(lambda: not reader.snapshot()["requests"])
    reader.order(clear="prefix_cache")
    server.ask("roseplay-last", text(40), 5)


def record(model: Path, folder: Path) -> list[Message]:
    """Returns a snapshot and the messages after it."""
    with serving(model, folder, *FLAGS) as server, server.reader() as reader:
        server.ask("earlier", text(80), 3)  # so that the snapshot has a pool
        snapshot = reader.attached()
        traffic(server, reader)
        return [snapshot, *reader.quiet(1000)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        tiny_model.write(Path(name))
        lines = record(Path(name), Path(name))
    check(*lines)
    lines[0]["settings"] |= {"model": "tiny"}
    FILE.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    print(f"{FILE}: {len(lines)} lines, {FILE.stat().st_size / 1e3:.0f} kB")
