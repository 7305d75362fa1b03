"""The scenario library: for each serving idea, traffic that demonstrates it and the settings before and after.

A scenario is data: an entry here is enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from roseplay.traffic.prompts import KINDS, PromptMix
from roseplay.traffic.scenario import Scenario

_REPEATED = (
    "Repeat this word for word: the council met on Tuesday to discuss the cycle lane. It would connect the station with the"
    " university, and a kerb would separate it from traffic. The council will vote on it in March."
)
# For scenarios not about sharing: without it, prompts with a common beginning cost as much as others.
_NO_SHARING = {"prefix_cache": False, "same_step_sharing": False}
_SHARING = dict.fromkeys(_NO_SHARING, (False, True))

# Longer than any answer, so that all answers have the same length.
_AGE = {"type": "integer", "minimum": 0, "maximum": 99}
_ANIMAL = {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["fox", "owl", "hare"]}, "age": _AGE}
_ITEM = {"type": "object", "properties": _ANIMAL, "required": [*_ANIMAL], "additionalProperties": False}
_ANIMALS = json.dumps({"json": {"type": "array", "minItems": 500, "items": _ITEM}})

# A quiet begin, in which the system prompt is used twice; then three documents between any two of its users.
_SYSTEM_PROMPT_AND_DOCUMENTS = PromptMix(repeats=(1, 1, 1, 1, *(1, 24, 24, 24) * 9), head_tokens=256, head_every=4)

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="token-budget",
            title="Token budget",
            card="Long prompts land on chats that are being read.",
            look=(
                "The tail, not the median: without a budget, a long prompt fills a step, and all answers wait for it.",
                "The price: a long prompt takes more steps, so first tokens come later; on a GPU, throughput falls too.",
            ),
            watch="itl_p99_ms",
            price="ttft_p95_ms",
            mix=KINDS["mix"],
            arrivals="interval",
            rate_per_s=50.0,
            max_new_tokens=32,
            knobs={"max_batch_size": 8, "prefill_max_batch_size": 32, **_NO_SHARING},
            compared={"prefill_max_tokens": (None, 64)},
        ),
        Scenario(
            name="admission",
            title="Admission",
            card="32 at once: does submit ever wait for the model?",
            look=(
                "How long submit takes: blocking, each call waits for a prefill; queued, it only queues the request.",
                "The price: prompts that do not fit into the next step wait in the queue. TTFT from arrival counts it in both.",
            ),
            watch="submit_p50_ms",
            price="queue_p50_ms",
            knobs=_NO_SHARING,
            compared={"admission": ("blocking", "queued")},
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
            knobs=_NO_SHARING,
            compared={"prefill_max_batch_size": (1, None)},
        ),
        Scenario(
            name="dedup",
            title="Dedup",
            card="32 equal prompts, one prefill.",
            look=(
                "Prompt tokens computed: equal prompts of a burst are computed once and share blocks and logits.",
                "The price: all of them decode together at once, which makes a step longer where computation, not reading the weights, limits it.",
            ),
            watch="ttft_p50_ms",
            price="tpot_p50_ms",
            mix=PromptMix(unique=False, repeats=(16,)),
            max_new_tokens=16,
            compared=_SHARING,
        ),
        Scenario(
            name="shared-head",
            title="Shared system prompt",
            card="One head of 512 tokens under 32 questions.",
            look=(
                "Prompt tokens saved: the system prompt is computed once and its blocks are shared.",
                "The price: all of them decode together sooner, which makes a step longer where computation, not reading the weights, limits it.",
            ),
            watch="ttft_p50_ms",
            price="tpot_p50_ms",
            mix=KINDS["shared_head"],
            max_new_tokens=16,
            compared=_SHARING,
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
            num_requests=64,
            max_new_tokens=64,
            knobs={"max_batch_size": 64, **_NO_SHARING},
            compared={"batched_append": (False, True)},
        ),
        Scenario(
            name="long-context",
            title="Long-context intruder",
            card="One very long prompt among chats that stream.",
            look=(
                "The worst pause: computed whole, the long prompt stops every chat once; in chunks, pauses are short.",
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
            compared={"chunked_prefill": (False, True), "prefill_max_tokens": (None, 64)},
        ),
        Scenario(
            name="chunk-tokens",
            title="Chunk tokens",
            card="A long prompt takes the budget, or half of it.",
            look=(
                "TTFT of the median request: short prompts are computed beside the long one, not behind it.",
                "The price: the long prompt has less of each step, so its first token comes later.",
            ),
            watch="ttft_p50_ms",
            price="longest_ttft_ms",
            mix=PromptMix(repeats=(1, 96, *[1] * 14)),
            num_requests=16,
            max_new_tokens=16,
            knobs={"prefill_max_tokens": 128, **_NO_SHARING},
            compared={"chunk_max_tokens": (None, 64)},
        ),
        Scenario(
            name="kv-pressure",
            title="KV pressure",
            card="More tokens than blocks: what is preempted?",
            look=(
                "Preemptions: out of blocks, the newest request gives its own up and computes them again later.",
                "The price: memory. B holds four times as many tokens.",
            ),
            watch="preemptions",
            price="kv_pool_tokens",
            num_requests=24,
            max_new_tokens=96,
            knobs=_NO_SHARING,
            config={"block_size": 16},
            compared_config={"num_blocks": (65, 257)},
        ),
        Scenario(
            name="eviction",
            title="Eviction",
            card="Long documents push a system prompt out.",
            look=(
                "Prompt tokens saved: by recency, each document pushes the system prompt out; by frequency, it stays.",
                "The price: none in this traffic. Where new prompts come back later, fewer of them are still cached.",
            ),
            watch="saved_tokens",
            mix=_SYSTEM_PROMPT_AND_DOCUMENTS,
            num_requests=40,
            knobs={"max_batch_size": 1},
            config={"num_blocks": 65, "block_size": 16},
            compared={"eviction_policy": ("lru", "lfu")},
        ),
        Scenario(
            name="pinned-prefix",
            title="Pinned prefix",
            card="The same, with a system prompt that stays.",
            look=(
                "Prompt tokens saved: once a second user has shared the system prompt, its blocks are pinned.",
                "The price: a quarter of the pool; the documents have the rest.",
            ),
            watch="saved_tokens",
            mix=_SYSTEM_PROMPT_AND_DOCUMENTS,
            num_requests=40,
            knobs={"max_batch_size": 1},
            config={"num_blocks": 65, "block_size": 16},
            compared={"pinned_blocks": (0, 16)},
        ),
        Scenario(
            name="swap",
            title="Swap",
            card="Out of blocks: computed again, or moved?",
            look=(
                "Tokens computed again: a preempted request's blocks wait in host memory and are copied back.",
                "The price: the copies. Which is faster depends on the prompts' length, the model and the machine.",
            ),
            watch="recomputed_tokens",
            price="moved_mb",
            mix=PromptMix(repeats=(12,)),
            num_requests=24,
            max_new_tokens=96,
            knobs=_NO_SHARING,
            config={"num_blocks": 129, "block_size": 16},
            compared={"preemption_mode": ("recompute", "swap")},
        ),
        Scenario(
            name="poisson",
            title="Poisson",
            card="Open arrivals at a rate you set.",
            look=(
                "The queue: arrivals do not wait for answers, so a small batch falls behind and never catches up.",
                "The price: in a large batch each token takes longer where computation limits a step.",
            ),
            watch="queue_p50_ms",
            price="itl_p50_ms",
            num_requests=64,
            arrivals="poisson",
            rate_per_s=40.0,
            max_new_tokens=32,
            knobs=_NO_SHARING,
            compared={"max_batch_size": (4, 32)},
        ),
        Scenario(
            name="fair-tenants",
            title="Fair tenants",
            card="Two tenants, one of which floods the queue.",
            look=(
                "The smallest tenant's wait: first come, it waits behind the flood; fair, the tenants take turns.",
                "The price: the tenant that floods waits longer, since what the other gets is taken from it.",
            ),
            watch="small_tenant_queue_p50_ms",
            price="large_tenant_queue_p50_ms",
            num_requests=64,
            tenants=("quiet", *["flood"] * 7),
            max_new_tokens=16,
            knobs={"max_batch_size": 4, **_NO_SHARING},
            compared={"scheduling_policy": ("fcfs", "fair")},
        ),
        Scenario(
            name="shortest-first",
            title="Shortest prompt first",
            card="Long prompts delay short ones, or wait for them.",
            look=(
                "TTFT of the median request: short prompts no longer wait behind long ones.",
                "The price: long prompts wait until no short one does, or until they have been overtaken often enough.",
            ),
            watch="ttft_p50_ms",
            price="longest_ttft_ms",
            mix=KINDS["mix"],
            max_new_tokens=16,
            knobs={"max_batch_size": 4, **_NO_SHARING},
            compared={"scheduling_policy": ("fcfs", "shortest")},
        ),
        Scenario(
            name="max-overtakes",
            title="Bound on waiting",
            card="A long prompt that all others overtake.",
            look=(
                "TTFT of the long prompt: without a bound, it waits until no other request does.",
                "The price: the short prompts behind it wait while it is computed.",
            ),
            watch="longest_ttft_ms",
            price="ttft_p50_ms",
            mix=PromptMix(repeats=(1, 1, 1, 1, 48, *[1] * 59)),
            num_requests=64,
            max_new_tokens=16,
            knobs={"max_batch_size": 4, "scheduling_policy": "shortest", **_NO_SHARING},
            compared={"max_overtakes": (None, 8)},
        ),
        Scenario(
            name="prefill-interval",
            title="Prefill interval",
            card="Prompts arrive while answers are being read.",
            look=(
                "ITL p95: with an interval, most tokens are drawn in steps that compute no prompt.",
                "The price: new requests wait for the next step with prompts.",
            ),
            watch="itl_p95_ms",
            price="ttft_p50_ms",
            mix=PromptMix(repeats=(16,)),
            num_requests=64,
            arrivals="interval",
            rate_per_s=20.0,
            max_new_tokens=64,
            knobs=_NO_SHARING,
            compared={"prefill_interval": (0, 32)},
        ),
        Scenario(
            name="speculation",
            title="Speculation",
            card="Answers that repeat text: many tokens a step.",
            look=(
                "TPOT: tokens that the answer takes from its own text come several to a step, and all are the same tokens.",
                "The price: a step with drafts computes more tokens. Where that takes longer, so do the pauses between arrivals.",
            ),
            watch="tpot_p50_ms",
            price="itl_p50_ms",
            mix=PromptMix(repeats=(3,)),
            prompt=_REPEATED,
            num_requests=3,
            arrivals="interval",
            rate_per_s=0.3,
            max_new_tokens=128,
            compared={"speculative_tokens": (0, 7)},
        ),
        Scenario(
            name="structured-output",
            title="Structured output",
            card="Half of the answers follow a JSON schema.",
            look=(
                "The wait for masks: which tokens the schema allows is computed before the model, or beside it.",
                "The price: none while a core is free; otherwise the masks take time from the model.",
            ),
            watch="mask_wait_ms",
            num_requests=16,
            structured_outputs=_ANIMALS,
            structured_every=2,
            max_new_tokens=48,
            knobs=_NO_SHARING,
            compared_config={"mask_overlap": (False, True)},
        ),
    )
}
