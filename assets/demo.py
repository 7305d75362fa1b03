"""Record demo.jsonl: four chats, a burst that makes their tokens wait, a smaller prefill budget, the same kind of burst again.

Starts the page with ``--record`` on this machine's loopback address and uses its public endpoints. Run it from the
repository on a quiet machine: the figures in the recording are those of the run.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from gradio_client import Client

from roseplay.recording.reader import read

TAB = "recorded-demo"
BURST = {"size": 32, "kind": "mix", "max_new_tokens": 72}
BLOCKS = 177  # too few for all of a burst to the end: somebody is preempted
BUDGET = 64
LANES = (
    ("What is a KV block and why is the cache cut into blocks?", "Why does inter-token latency spike?"),
    ("Tell me a short story about a fox who finds a lantern.", "Tell me a story about an owl."),
    ("What does the scheduler do in each step?", "What is chunked prefill and what does it cost?"),
    ("Tell me a story about a lighthouse keeper.", "What does the prefix cache do?"),
)


class Page:
    """What the demo does with a page."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.client = Client(address, verbose=False)

    def ask(self, turn: int) -> None:
        for lane, questions in enumerate(LANES, 1):
            how = {"lane": lane, "max_new_tokens": 220, "temperature": 0.6, "seed": 40 + lane, "tab": TAB}
            self.client.predict(questions[turn], **how, api_name="/submit")

    def burst(self, seed: int) -> None:
        self.client.predict(**BURST, seed=seed, tab=TAB, api_name="/burst")

    def set_knobs(self, **knobs: Any) -> None:
        self.client.predict(knobs, api_name="/set_knobs")

    def wait(self, kind: str = "", limit_s: float = 300.0) -> None:
        """Until all requests (of a kind) have ended."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{self._address}/ui/delta", timeout=60) as answer:
                requests = json.load(answer)["snapshot"]["requests"]
            if all(about["finished"] is not None for _, about in requests if not kind or about["kind"] == kind):
                return
            time.sleep(0.1)
        raise TimeoutError("the requests did not end")


def play(page: Page, slow_motion: float) -> None:
    """What is to be seen."""
    page.set_knobs(slow_motion=slow_motion)
    page.ask(0)
    time.sleep(1.2)
    page.burst(7)
    page.wait("burst")
    page.set_knobs(prefill_max_tokens=BUDGET)
    page.ask(1)
    time.sleep(1.2)
    page.burst(8)
    page.wait()
    time.sleep(2.5)  # until the rate of tokens has come down to nothing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("demo.jsonl"))
    parser.add_argument("--slow-motion", type=float, default=6.0, help="the embedded model is too fast to watch")
    options = parser.parse_args()
    file = options.file
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "roseplay",
        "play",
        "--port",
        "0",
        "--num-blocks",
        str(BLOCKS),
        "--record",
        str(new),
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = server.stdout.readline() if server.stdout else ""
        address = re.search(r"http://\S+", said)
        if not address:
            return 1
        play(Page(address[0]), options.slow_motion)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    recording = read(new)
    new.replace(file)
    steps = [step for frame in recording.frames for step in frame["steps"]]
    print(f"{file}: {file.stat().st_size:,} bytes, {len(steps)} steps over {(steps[-1].t1 - steps[0].t0) / 1000:.1f} s")
    print(f"preemptions: {sum(len(step.preempted) for step in steps)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
