"""The scenario library: for each serving idea, traffic that demonstrates it and the settings before and after.

A scenario is data: an entry here is enough for ``roseplay lab`` and the page's lab.
"""

from __future__ import annotations

from collections.abc import Mapping

from roseplay.traffic.prompts import KINDS, PromptMix
from roseplay.traffic.scenario import Scenario

_REPEATED = (
    "Repeat this word for word: the council met on Tuesday to discuss the cycle lane. It would connect the station with the"
    " university, and a kerb would separate it from traffic. The council will vote on it in March."
)
# For scenarios not about sharing: without it, prompts with a common beginning cost as much as others.
_NO_SHARING = {"prefix_cache": False, "same_step_sharing": False}

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="admission",
            title="Admission",
            card="32 at once: does submit ever wait for the model?",
            look=(
                "How long submit takes: blocking, each call waits for a prefill; queued, it only queues the request.",
                "The price: the wait does not go away, it moves into the queue. TTFT from arrival counts it in both.",
            ),
            watch="submit_p50_ms",
            price="queue_p50_ms",
            mix=KINDS["unique"],
            knobs=_NO_SHARING,
            before={"admission": "blocking"},
            after={"admission": "queued"},
        ),
        Scenario(
            name="batched-prefill",
            title="Batched prefill",
            card="32 prompts: one forward pass each, or one for all.",
            look=(
                "TTFT of the later prompts: those that wait together are computed in one forward pass.",
                "The price: the first prompt waits for the others in its forward pass.",
            ),
            watch="ttft_p50_ms",
            price="itl_max_ms",
            mix=KINDS["unique"],
            knobs=_NO_SHARING,
            before={"prefill_max_batch_size": 1},
            after={"prefill_max_batch_size": None},
        ),
        Scenario(
            name="dedup",
            title="Dedup",
            card="32 equal prompts, one prefill.",
            look=(
                "Prompt tokens computed: equal prompts of a burst are computed once and share blocks and logits.",
                "The price: all of them decode together at once, so a step is longer for each.",
            ),
            watch="ttft_p50_ms",
            price="tpot_p50_ms",
            mix=PromptMix(unique=False, repeats=(16,)),
            max_new_tokens=16,
            before=_NO_SHARING,
            after={"same_step_sharing": True, "prefix_cache": True},
        ),
        Scenario(
            name="shared-head",
            title="Shared system prompt",
            card="One head of 512 tokens under 32 questions.",
            look=(
                "Prompt tokens saved: the system prompt is computed once and its blocks are shared.",
                "The price: all of them decode together sooner, so a step is longer for each.",
            ),
            watch="ttft_p50_ms",
            price="tpot_p50_ms",
            mix=KINDS["shared_head"],
            max_new_tokens=16,
            before=_NO_SHARING,
            after={"same_step_sharing": True, "prefix_cache": True},
        ),
        Scenario(
            name="token-budget",
            title="Token budget",
            card="Long prompts land on chats that are being read.",
            look=(
                "The tail, not the median: without a budget, a long prompt fills a step, and all answers wait for it.",
                "The price: with a budget, a long prompt takes more steps, so first tokens come later.",
            ),
            watch="itl_p99_ms",
            price="ttft_p95_ms",
            mix=KINDS["mix"],
            arrivals="interval",
            rate_per_s=50.0,
            max_new_tokens=32,
            knobs={"max_batch_size": 8, "prefill_max_batch_size": 32, **_NO_SHARING},
            before={"prefill_max_tokens": None},
            after={"prefill_max_tokens": 64},
        ),
        Scenario(
            name="batched-append",
            title="Batched append",
            card="One KV write per layer, not one per request.",
            look=(
                "Throughput at a large batch: one write per layer and step instead of one per request and layer.",
                "The price: none in these figures; the written blocks are the same.",
            ),
            watch="output_tokens_per_s",
            mix=KINDS["unique"],
            num_requests=64,
            max_new_tokens=64,
            knobs={"max_batch_size": 64, **_NO_SHARING},
            before={"batched_append": False},
            after={"batched_append": True},
        ),
        Scenario(
            name="long-context",
            title="Long-context intruder",
            card="One very long prompt among chats that stream.",
            look=(
                "The worst gap: computed whole, the long prompt stops every chat once; in chunks, pauses are short.",
                "The price: the long prompt itself waits longer for its first token.",
            ),
            watch="itl_max_ms",
            price="ttft_p95_ms",
            mix=PromptMix(repeats=(1, 1, 1, 1, 1, 1, 96, 1, 1, 1, 1, 1)),
            num_requests=12,
            arrivals="interval",
            rate_per_s=40.0,
            max_new_tokens=64,
            knobs=_NO_SHARING,
            before={"chunked_prefill": False, "prefill_max_tokens": None},
            after={"chunked_prefill": True, "prefill_max_tokens": 64},
        ),
        Scenario(
            name="kv-pressure",
            title="KV pressure",
            card="More live tokens than blocks: what is preempted?",
            look=(
                "Preemptions: out of blocks, the newest request gives its own up and computes them again later.",
                "The price: memory. B holds four times as many tokens.",
            ),
            watch="preemptions",
            price="kv_pool_tokens",
            mix=KINDS["unique"],
            num_requests=24,
            max_new_tokens=96,
            knobs=_NO_SHARING,
            config={"block_size": 16},
            config_before={"num_blocks": 65},
            config_after={"num_blocks": 257},
        ),
        Scenario(
            name="poisson",
            title="Poisson",
            card="Open arrivals at a rate you set.",
            look=(
                "The queue: arrivals do not wait for answers, so a small batch falls behind and never catches up.",
                "The price: in a large batch each token takes longer.",
            ),
            watch="queue_p50_ms",
            price="itl_p50_ms",
            mix=KINDS["unique"],
            num_requests=64,
            arrivals="poisson",
            rate_per_s=40.0,
            max_new_tokens=32,
            knobs=_NO_SHARING,
            before={"max_batch_size": 4},
            after={"max_batch_size": 32},
        ),
        Scenario(
            name="speculation",
            title="Speculation",
            card="Answers that repeat text: many tokens a step.",
            look=(
                "TPOT: tokens that the answer takes from its own text come several to a step, and all are the same tokens.",
                "The price: a step with drafts is longer, so more time passes between two arrivals.",
            ),
            watch="tpot_p50_ms",
            price="itl_p50_ms",
            mix=PromptMix(repeats=(3,)),
            prompt=_REPEATED,
            num_requests=3,
            arrivals="interval",
            rate_per_s=0.3,
            max_new_tokens=128,
            before={"speculative_tokens": 0},
            after={"speculative_tokens": 7},
        ),
    )
}
