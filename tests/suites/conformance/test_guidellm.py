"""An independent load generator measures the same TTFT and ITL as the server reports for the same requests.

All means are over all requests. A client's clock starts before it sends and stops after it reads, so its TTFT is the
server's plus the overhead of both processes; for gaps between tokens, that overhead affects both ends. Here, half of
the requests wait for the other half, in slow motion, so that the overhead is comparatively small: on two busy cores,
TTFT was 2 to 7% longer and ITL differed by 0.1 to 3.3%. Without waiting, on a machine under heavy load, TTFT was up to
37% longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from roseplay.model.source import embedded_model
from tests.serve.program import served
from tests.suites.conformance.conftest import MODEL

GUIDELLM = shutil.which(os.path.abspath(os.environ["GUIDELLM"]) if "GUIDELLM" in os.environ else "guidellm")
STREAMS, BATCH, REQUESTS, PROMPT, ANSWER = 4, 2, 24, 48, 48
# The most by which a client's mean TTFT may exceed the server's, and by which its mean ITL may differ.
TTFT_REL, TTFT_S = 0.15, 0.060
ITL_REL, ITL_S = 0.10, 0.002

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(GUIDELLM is None, reason="make conformance installs it"),
]


class Means(NamedTuple):
    """Mean TTFT and ITL in seconds, with the numbers of requests and of gaps."""

    ttft: float
    itl: float
    requests: int
    gaps: int


def of_the_server(address: str, load: Callable[[], Means]) -> tuple[Means, Means]:
    """A client's means for a load, and those from the server's histograms."""
    before = scrape(address)
    client = load()
    sums = {name: value - before[name] for name, value in scrape(address).items()}
    ttft, itl = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    requests, gaps = sums[f"{ttft}_count"], sums[f"{itl}_count"]
    return client, Means(sums[f"{ttft}_sum"] / requests, sums[f"{itl}_sum"] / gaps, int(requests), int(gaps))


def scrape(address: str) -> dict[str, float]:
    families = text_string_to_metric_families(httpx.get(f"{address}/metrics", timeout=30).text)
    return {sample.name: sample.value for family in families for sample in family.samples if "latency" in sample.name or "first_token" in sample.name}  # fmt: skip


def expect_agreement(client: Means, server: Means) -> None:
    assert (client.requests, client.gaps) == (server.requests, server.gaps) == (REQUESTS, REQUESTS * (ANSWER - 1))
    assert server.ttft < client.ttft <= server.ttft + max(TTFT_REL * server.ttft, TTFT_S), (client, server)
    assert client.itl == pytest.approx(server.itl, rel=ITL_REL, abs=ITL_S), (client, server)


def guidellm(address: str, folder: Path) -> Means:
    command = [
        *(str(GUIDELLM), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={address},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={STREAMS}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={embedded_model()}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}"),
        *("--output", f"kind=json,path={folder / 'report.json'}"),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (found,) = json.loads((folder / "report.json").read_text())["benchmarks"]
    assert not found["requests"]["errored"], found["requests"]["errored"][0]["info"]["error"]
    ttft, itl = (found["metrics"][name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    return Means(ttft["mean"] / 1e3, itl["mean"] / 1e3, ttft["count"], itl["count"])


def our_client(address: str) -> Means:
    """The same load from a client of our own."""
    return asyncio.run(_our_client(address))


async def _our_client(address: str) -> Means:
    left = iter(range(REQUESTS))
    times: list[list[float]] = []

    async def one_after_another(client: httpx.AsyncClient) -> None:
        for number in left:
            body = {"model": MODEL, "prompt": [7 + number, *range(20, 20 + PROMPT)], "max_tokens": ANSWER}
            body |= {"stream": True, "ignore_eos": True}
            seen = [time.perf_counter()]
            times.append(seen)
            async with client.stream("POST", "/v1/completions", json=body) as response:
                seen.extend(
                    [time.perf_counter() async for line in response.aiter_lines() if line.startswith("data: {")]
                )

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await asyncio.gather(*(one_after_another(client) for _ in range(STREAMS)))
    gaps = len(times) * (ANSWER - 1)  # an event may contain several tokens
    ttft = sum(seen[1] - seen[0] for seen in times) / len(times)
    return Means(ttft, sum(seen[-1] - seen[1] for seen in times) / gaps, len(times), gaps)


def test_it_measures_what_the_server_says(tmp_path: Path) -> None:
    flags = ("--worker", "process", "--threads", "1", "--slow-motion", "4", "--max-batch-size", str(BATCH))
    with served(*flags, model=("--model", MODEL)) as (_, address):
        client, server = of_the_server(address, lambda: guidellm(address, tmp_path))
        ours, of_ours = of_the_server(address, lambda: our_client(address))
    print(f"guidellm {client}, server {server}; our client {ours}, server {of_ours}")
    expect_agreement(client, server)
    expect_agreement(ours, of_ours)
