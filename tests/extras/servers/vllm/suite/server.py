"""The real vLLM in its own processes, with the probe in its scheduler."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from roseplay.extras.servers import vllm
from tests.extras.servers.vllm.suite.probe_reader import Message, Reader

INSIDE = Path(vllm.__file__).parent / "inside"
NGRAM = (  # drafts without a model
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}',
)
STARTS_WITHIN_S = 400.0
WORDS = "the cat and a fox went to the river where an old man told them of the sea ".split()


def text(words: int, start: str = "") -> str:
    return start + " ".join(WORDS[index % len(WORDS)] for index in range(words))


@dataclass
class Answer:
    """What a client received."""

    token_ids: list[int]
    prompt_tokens: int
    finish_reason: str


class Server:
    """Its address, and its probe's port."""

    def __init__(self, url: str, steps_port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url, self.steps_port, self.process, self._log = url, steps_port, process, log
        self.http = httpx.Client(base_url=url, timeout=120)
        self._clients = ThreadPoolExecutor(64)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ask(self, name: str, prompt: str, tokens: int, **more: Any) -> Answer:
        """Reads a stream to its end; the name is part of vLLM's id of the request."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        body |= {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}, **more}
        answer = Answer([], 0, "")
        headers = {"X-Request-Id": name}
        with self.http.stream("POST", "/v1/completions", json=body, headers=headers) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    answer.prompt_tokens = (event.get("usage") or {}).get("prompt_tokens", answer.prompt_tokens)
                    for choice in event["choices"]:
                        answer.token_ids += choice.get("token_ids") or []
                        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        return answer

    def start(self, name: str, prompt: str, tokens: int, **more: Any) -> Future[Answer]:
        return self._clients.submit(self.ask, name, prompt, tokens, **more)

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))

    def reader(self, rank: int = 0) -> Any:
        return closing(Reader(self.steps_port + 2 * rank))

    def engine_pid(self) -> int:
        """The process of the engine, in the group that the server leads."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                ours = os.getpgid(int(path.parent.name)) == self.process.pid
                if ours and path.read_bytes().startswith(b"VLLM::EngineCore"):
                    return int(path.parent.name)
            except OSError:
                continue
        raise AssertionError("no engine")


def of(messages: Sequence[Message], field: str) -> list[Any]:
    """The rows, or the names, that the steps have in a field."""
    return [row for message in messages if message["kind"] == "step" for row in message[field]]


def tokens_of(messages: Sequence[Message], name: str) -> list[int]:
    """The tokens that steps sampled for the request of that name."""
    rows = [message["tokens"] for message in messages if message["kind"] == "step"]
    return [
        token for row in rows for request, ids in row.items() if request.startswith(f"cmpl-{name}-0-") for token in ids
    ]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(
    model: Path, folder: Path, *flags: str, scheduler: str = "roseplay_probe.ProbedScheduler", **env: str
) -> Iterator[Server]:
    """Starts vLLM and ends it with all its processes."""
    port, steps_port, log = free_port(), 20_000 + free_port() % 9_000, folder / "vllm.log"
    command = [os.environ["VLLM"], "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += "--served-model-name tiny --dtype bfloat16 --max-model-len 4096 --block-size 32 --enforce-eager".split()
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(INSIDE),
        "ROSEPLAY_STEPS": f"tcp://127.0.0.1:{steps_port}",
        **env,
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--scheduler-cls", scheduler, *flags],
            env=inherited | settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", steps_port, process, log)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not _answers(server):
            assert process.poll() is None and time.monotonic() < deadline, server.log()[-4000:]
            time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left


def _answers(server: Server) -> bool:
    try:
        return server.http.get("/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
