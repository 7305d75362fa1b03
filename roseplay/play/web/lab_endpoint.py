"""The Lab for programs: ``/lab`` and ``/lab_stop``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import gradio as gr

from roseplay.lab.job import Job
from roseplay.play.traffic import refused
from roseplay.play.web.calls import LOOK_S, Endpoints, refusals_as_errors, until

LAB_POLL_S = 0.1


class Experiments(Endpoints):
    """The lab."""

    async def lab(
        self,
        scenario: str = "token-budget",
        a: dict | None = None,
        b: dict | None = None,
        seed: int = 0,
        repeats: int = 1,
        params: dict | None = None,
        request: gr.Request = None,  # type: ignore[assignment]
    ) -> AsyncIterator[dict]:
        """Play a scenario's traffic under two settings, side by side; the result is the summary, once it is there.

        An arm is {"knobs": {...}, "config": {...}}; without one the scenario's own counts. The result itself is at
        /ui/lab/result/ and the answer's id. Chats and bursts stand still meanwhile. Who iterates over the job is told
        twice a second how long it will take; a client that leaves stops it.
        """
        body = {"scenario": scenario, "a": a, "b": b, "seed": seed, "repeats": repeats, "params": params}
        with refusals_as_errors():
            job = await anyio.to_thread.run_sync(self.playground.lab.start, body)
        try:
            async for news in until(lambda: _ended(job, LOOK_S), request, lambda: _progress(job)):
                yield news
        finally:
            job.stop()  # of no effect once it has ended; else nobody is there to read it
        document = self.playground.lab.store.get(job.result or "")
        if document is None or job.state != "done":
            kept = f"; what was complete is at /ui/lab/result/{job.result}" if job.result else ""
            raise refused(RuntimeError(job.error or f"the lab was stopped{kept}"), 409)
        yield {"id": job.result, **document["summary"]}

    def lab_stop(self) -> bool:
        """Stop what the lab is doing; answers whether it was doing anything."""
        return self.playground.lab.stop()


async def _ended(job: Job, seconds: float) -> bool:
    """Whether an experiment ends within that time."""
    until = time.monotonic() + seconds
    while job.running and time.monotonic() < until:
        await asyncio.sleep(LAB_POLL_S)
    return not job.running


def _progress(job: Job) -> dict[str, Any]:
    status = job.status()
    return {name: status[name] for name in ("state", "left_s")}
