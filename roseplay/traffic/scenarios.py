"""The scenario library: for each serving idea the traffic that shows it, and its switch before and after.

A scenario is data. Add one by adding an entry to ``SCENARIOS``; the benchmark takes it by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roseplay.config import Knobs, SamplingParams
from roseplay.traffic.arrivals import fixed_interval
from roseplay.traffic.metrics import LATENCIES
from roseplay.traffic.prompts import KINDS, PromptMix, PromptSource
from roseplay.traffic.workload import Workload, make_workload


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Traffic that shows what one switch does.

    Attributes:
        name: how it is called on a command line.
        shows: what to see, in a line.
        watch: the figure that moves: one of ``LATENCIES``, ``submit_wall_s`` or ``output_tokens_per_s``.
        mix: how its prompts relate.
        num_requests: how many there are.
        interval_s: seconds from one arrival to the next; 0 is a burst.
        max_new_tokens: length of each answer; it is reached, end-of-sequence tokens are ignored.
        knobs: settings of both runs.
        before, after: settings of each run besides.
    """

    name: str
    shows: str
    watch: str
    mix: PromptMix
    num_requests: int = 32
    interval_s: float = 0.0
    max_new_tokens: int = 8
    knobs: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.watch not in (*LATENCIES, "submit_wall_s", "output_tokens_per_s"):
            raise ValueError(f"scenario {self.name} watches {self.watch!r}, which is no figure")
        self.arms()

    def arms(self) -> dict[str, Knobs]:
        """``{"before": …, "after": …}``; raises ``ValueError`` for a bad knob."""
        return {
            "before": Knobs().changed({**self.knobs, **self.before}),
            "after": Knobs().changed({**self.knobs, **self.after}),
        }

    def workload(self, source: PromptSource, *, seed: int = 0) -> Workload:
        """Its traffic: the same list for the same source and seed."""
        return make_workload(
            source,
            fixed_interval(self.num_requests, self.interval_s),
            mix=self.mix,
            params=SamplingParams(max_new_tokens=self.max_new_tokens, ignore_eos=True),
            seed=seed,
        )


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="admission",
            shows="submit only enqueues: a burst is taken at once, and the waiting moves to where it can be seen",
            watch="submit",
            mix=KINDS["unique"],
            knobs={"prefix_cache": False},
            before={"admission": "blocking"},
            after={"admission": "queued"},
        ),
        Scenario(
            name="batched-prefill",
            shows="prompts that wait together are computed in one forward",
            watch="ttft",
            mix=KINDS["unique"],
            before={"prefill_max_batch_size": 1},
            after={"prefill_max_batch_size": None},
        ),
        Scenario(
            name="dedup",
            shows="equal prompts of a burst are computed once and share blocks and logits",
            watch="ttft",
            mix=PromptMix(unique=False, repeats=(256,)),
            before={"same_step_sharing": False, "prefix_cache": False},
            after={"same_step_sharing": True, "prefix_cache": True},
        ),
        Scenario(
            name="shared-head",
            shows="prompts with one system prompt pay for it once",
            watch="ttft",
            mix=KINDS["shared_head"],
            before={"same_step_sharing": False, "prefix_cache": False},
            after={"same_step_sharing": True, "prefix_cache": True},
        ),
        Scenario(
            name="token-budget",
            shows="a limit on prompt tokens a step keeps long prompts from stopping those who stream",
            watch="itl",
            mix=KINDS["mix"],
            interval_s=0.02,
            max_new_tokens=32,
            knobs={"max_batch_size": 8, "prefill_max_batch_size": 32},
            before={"prefill_max_tokens": None},
            after={"prefill_max_tokens": 16},
        ),
        Scenario(
            name="batched-append",
            shows="one KV write a layer and step, not one a request and layer",
            watch="output_tokens_per_s",
            mix=KINDS["unique"],
            num_requests=64,
            max_new_tokens=64,
            knobs={"max_batch_size": 64, "prefix_cache": False},
            before={"batched_append": False},
            after={"batched_append": True},
        ),
    )
}
