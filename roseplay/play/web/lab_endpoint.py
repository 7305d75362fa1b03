"""The lab for programs: ``/lab`` and ``/lab_stop``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import gradio as gr

from roseplay.lab.job import Job
from roseplay.play.web.calls import LOOK_S, Endpoints, refusal, refusals_as_errors, until

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
        """Play a scenario's traffic under two settings; returns the summary.

        An arm is {"knobs": {...}, "config": {...}}; a null arm is the scenario's own. The whole result is at
        /ui/lab/result/ and the id that is returned. Chats and bursts are paused meanwhile. A job that is iterated over
        yields the progress twice a second; a client that disconnects stops the experiment.
        """
        body = {"scenario": scenario, "a": a, "b": b, "seed": seed, "repeats": repeats, "params": params}
        with refusals_as_errors():
            job = await anyio.to_thread.run_sync(self.playground.lab.start, body)
        try:
            async for progress in until(lambda: _ended(job, LOOK_S), request, lambda: _progress(job)):
                yield progress
        finally:
            job.stop()  # does nothing once it has ended; otherwise the client is gone
        document = self.playground.lab.store.get(job.result or "")
        if document is None or job.state != "done":
            kept = f"; what was complete is at /ui/lab/result/{job.result}" if job.result else ""
            raise refusal(RuntimeError(job.error or f"the lab was stopped{kept}"), 409)
        yield {"id": job.result, **document["summary"]}

    def lab_stop(self) -> bool:
        """Stop the running experiment; returns whether there was one."""
        return self.playground.lab.stop()


async def _ended(job: Job, seconds: float) -> bool:
    """Returns whether an experiment ends within that time."""
    until = time.monotonic() + seconds
    while job.running and time.monotonic() < until:
        await asyncio.sleep(LAB_POLL_S)
    return not job.running


def _progress(job: Job) -> dict[str, Any]:
    status = job.status()
    return {name: status[name] for name in ("state", "left_s")}
