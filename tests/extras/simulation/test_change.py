"""From an engine that computes to a simulated one."""

from __future__ import annotations

import dataclasses
from contextlib import closing

from roseplay.config import Knobs
from roseplay.play.engine_start import host_engine
from roseplay.play.options import parse


def test_knobs_that_a_simulated_engine_cannot_have_are_reset_with_a_notice() -> None:
    options = parse("--model tiny-chat --worker thread --num-blocks 64".split())
    host = host_engine(options, "roseplay play")
    host.page_is_made.set()
    host.begin()
    with closing(host):
        assert host.wait(120) and host.live, host.status.sentence
        host.set_knobs({"speculative_tokens": 4, "pinned_blocks": 20, "preemption_mode": "swap", "max_batch_size": 6})
        host.switch("tiny-chat", dataclasses.replace(options.config, run_as="h100", num_blocks=21))
        assert host.wait(120) and host.live and host.config.run_as == "h100", host.status.sentence
        assert "Pinned prefix 20, Preemption swap, Speculative tokens 4" in (host.playground.notice or "")
        assert host.knobs() == {**Knobs().to_dict(), "max_batch_size": 6}
