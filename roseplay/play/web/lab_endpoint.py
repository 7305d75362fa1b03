"""The lab for programs: ``/lab`` and ``/lab_stop``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import gradio as gr
from anyio.to_thread import run_sync

from roseplay.lab.job import Job
from roseplay.play.web.calls import LOOK_S, Endpoints, refusal, refusals_as_errors, until


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
        length: int = 1,
        max_spread_pct: float | None = None,
        request: gr.Request = None,  # type: ignore[assignment]
    ) -> AsyncIterator[dict]:
        """Play a scenario's traffic under two settings; returns the summary.

        An arm is {"knobs": {...}, "config": {...}}; a null arm is the scenario's own. ``length`` is 1, 4 or 10 times the
        scenario's requests; with ``max_spread_pct`` each arm is repeated until the spread is at most so many percent of
        its median. The whole result is at /ui/lab/result/ and the id that is returned. Chats and bursts are paused meanwhile. A job that is iterated over
        yields the progress twice a second; a client that disconnects stops the experiment.
        """
        body: dict[str, Any] = {
            "scenario": scenario,
            "a": a,
            "b": b,
            "seed": seed,
            "repeats": repeats,
            "params": params,
        }
        body |= {"length": length, "max_spread_pct": max_spread_pct}
        with refusals_as_errors():
            job = await run_sync(self.playground.lab.start, body)
        try:
            async for progress in until(partial(run_sync, job.wait, LOOK_S), request, lambda: _progress(job)):
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


def _progress(job: Job) -> dict[str, Any]:
    status = job.status()
    return {name: status[name] for name in ("state", "left_s")}
