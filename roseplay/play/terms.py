"""What the words on the page mean: shown when the pointer rests on them, and read to who cannot see them."""

from __future__ import annotations

TERMS = {
    "tokens / s": "Tokens generated a second, by all requests together, over the last two seconds.",
    "run / wait": "Requests that are being computed, and requests that wait to be admitted.",
    "TTFT p50 / p95": "Time to first token: from submitting a request to its first token. Median, and the value that 95 % stay below, over the last 15 s of traffic.",
    "ITL p50 / p99": "Inter-token latency: the gap between two tokens of one answer. Median, and the value that 99 % of gaps stay below, over the last 15 s of traffic.",
    "KV in use": "Share of the KV blocks that running requests hold. The keys and values of every token live in such blocks.",
    "saved by sharing": "Prompt tokens nobody had to compute: found in the prefix cache, or computed by another request of the same step.",
    "Scheduler": "Decides in every step who computes which tokens. A change acts on the next step.",
    "Optimisations": "Each can be switched off while the engine runs, to see what it does.",
    "Traffic": "What Burst sends.",
    "Last burst": "The newest burst of anyone: what its prompts cost, and what sharing saved of them.",
    "Inter-token latency": "Every token's gap to the one before it in the same answer. A step that also computes prompts makes everybody wait.",
    "Tokens per step": "What each step computed: prompt tokens and decode tokens. The dashed line is the prefill budget.",
    "TTFT": "Time to first token, as the share of requests that had theirs within a time.",
    "KV over time": "Blocks of the KV cache: shared by several requests, held by one, kept for who comes back, free.",
    "Steps": "One row a request: when it waited, when its prompt was computed, when it decoded.",
    "KV blocks": "Every block of the KV cache in the colour of the request that holds it; inverted with the number of holders where several share it.",
}

# For Gradio's own controls, by the id of the element.
CONTROLS = {
    "budget": "Prefill budget (prefill_max_tokens): most prompt tokens computed in one step. Small keeps everybody's tokens coming evenly, large brings new requests' first tokens sooner. Cached and shared tokens cost nothing.",
    "prefill-requests": "Prefill requests (prefill_max_batch_size): requests whose prompts are worked on in one step.",
    "max-batch": "Max batch (max_batch_size): requests that run at once. More give more tokens a second in all, and fewer to each.",
    "prefix-cache": "Prefix cache (prefix_cache): a prompt that begins like an earlier one takes over its blocks instead of computing them.",
    "sharing": "Same-step sharing (same_step_sharing): equal prompts of one step are computed once and share their blocks.",
    "chunked": "Chunked prefill (chunked_prefill): a prompt larger than the budget is computed in parts. Off: whole, as its step's only prompt.",
    "append": "Batched append (batched_append): keys and values of all requests are written at once in each layer. Off: one write a request.",
    "graphs": "CUDA graphs (cuda_graphs): a step's launches are recorded once and replayed. Needs a GPU.",
    "slow": "Slow motion (slow_motion): every step takes this many times as long, so that a small model can be watched. Figures are stretched with it.",
    "burst-size": "Requests that one press of Burst sends.",
    "answer-length": "Tokens that each request of a burst generates, no more and no fewer.",
    "mix": "Prompts of a burst. unique: each ends differently. equal: all the same. shared head: 512 tokens in common, then a question each. 1·1·1·64 mix: every fourth is 64 times as long.",
    "burst": "Send a burst (key b).",
    "stop": "Stop this tab's lanes and bursts (key .).",
    "to": "Which lanes the prompt goes to.",
    "lane-count": "How many lanes are shown.",
    "send": "Send the prompt (Enter).",
    "sampling": "How answers are drawn: system prompt, temperature and the like, for all lanes or for one.",
    "sampling-lane": "Which lanes the settings below apply to. What a lane has of its own wins over all lanes.",
    "sampling-reset": "Give this lane the settings of all lanes, or all lanes those they began with.",
    "sampling-system": "System prompt: what the model is told before the conversation. It counts as prompt tokens.",
    "sampling-temperature": "Temperature: 0 always takes the likeliest token; higher is more varied.",
    "sampling-top-p": "Top-p: only the likeliest tokens that together reach this probability.",
    "sampling-top-k": "Top-k: only this many of the likeliest tokens; 0 keeps all.",
    "sampling-min-p": "Min-p: only tokens at least this share as likely as the likeliest one; 0 is off.",
    "sampling-repetition": "Repetition penalty: above 1, tokens that are already there become less likely.",
    "sampling-new-tokens": "New tokens (max_new_tokens): an answer ends after this many. A longer answer leaves less room for the conversation.",
    "sampling-seed": "Seed: the same one draws the same answer again. Empty: another one each time and in each lane.",
    "sampling-stop": "Stop strings: an answer ends before the first of them.",
}

KEYS = (
    ("Enter", "send the prompt"),
    ("b", "burst"),
    (".", "stop all of this tab's requests"),
    ("1 – 8", "go to a lane"),
    (
        "← ↑ → ↓",
        "in a lane: from token to token, Enter asks why it took so long; in Steps: move in time; in KV blocks: choose a block, Enter opens it",
    ),
    ("Esc", "back to now, close this"),
    ("?", "this list"),
)
