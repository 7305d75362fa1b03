"""Explanations of the page's terms, shown beside them on request or when the pointer rests on them."""

from __future__ import annotations

from typing import Any

from roseplay.play.answer_settings import Settings
from roseplay.settings import settings_of
from roseplay.traffic.run_figures import DEFINITIONS

TERMS = {
    "tokens/s": "Tokens generated per second by all requests together, over the last two seconds.",
    "run / wait": "Requests that are running, and requests that wait to be admitted.",
    "TTFT p50 / p95": f"{DEFINITIONS['ttft']} Median, and the value that 95 % stay below, over the time that the charts show.",
    "ITL p50 / p99": f"{DEFINITIONS['itl']} Median, and the value that 99 % of pauses stay below, over the time that the charts show.",
    "KV in use": "Share of the KV blocks that running requests hold. The keys and values of every token live in such blocks.",
    "saved by sharing": "Prompt tokens that did not have to be computed: found in the prefix cache, or computed by another request in the same step. All tabs and programs count; tokens that a preempted request computes again do so once.",
    "limited by": "What has to change for the engine to be faster, and in what share of the steps shown. decode and prefill: the computing of tokens and of prompts itself. overhead: the host's work around it, such as packing and sampling. If requests wait, what for: batch is a place in it, KV is blocks, slots are those for states, prefill is its budget or interval, queue is that it is full.",
    "prefix hit rate": "The share of the prompt tokens looked up in the server's prefix cache that were found there, for all of its clients and over the time that the charts show.",
    "Requests over time": "One row per request: dotted until its first token arrived, then a line while its tokens arrived. If the server reports how long a request waited, its prefill is a dark box.",
    "Replicas": "The engines behind the server's address, as its metrics distinguish them: how many requests each runs, how full its KV cache is, and what share of its prompt tokens it found cached.",
    "Server": "What the metrics of this server say of all its clients, and what the page cannot show because it does not "
    "report it.",
    "Scheduler": "Decides which tokens of which requests each step computes. A change takes effect in the next step.",
    "Optimisations": "Each can be switched off while the engine runs, to see what it does.",
    "Traffic": "Requests sent in addition to those of the lanes: bursts, steady traffic, and requests from a file.",
    "Burst size": "Requests that one press of Burst sends, all at once.",
    "Answer length": "Tokens that each request of a burst or of steady traffic generates, no more and no fewer.",
    "unique": "Each prompt ends differently: only the few tokens at the beginning can be shared.",
    "equal": "All prompts are the same: one of them is computed, and the others share its blocks.",
    "same start": "All prompts begin with the same 512 tokens, like a long system prompt, and end with different questions.",
    "mixed lengths": "Every fourth prompt is 64 times as long as the others, which may have to wait for it.",
    "Steady traffic": "Requests arrive at a set rate, whether or not earlier ones are answered, for as long as this tab is open. Poisson: the gaps between them are random. Even: the gaps are equal.",
    "Rate": "Requests per second of the steady traffic, on average.",
    "Your own traffic": "Requests from a file, sent at the times in the file whether or not earlier ones are answered. The file is JSONL with one request per line, CSV with the same columns, or conversations in ShareGPT's format.",
    "This step": "What the engine computes at once: a cell for each prompt token, and on top the next token of each running answer, which none gets before the step ends. Left, the requests that wait; below, the KV blocks. Drag **budget** and **batch**. Of steps faster than the eye, the slowest is shown.",
    "Inter-token latency": "The time between each token and the one before it in the same answer. A step that also computes prompts delays every answer.",
    "Before and after": "The same requests under two settings, on the same axes. In Live, it stays until you dismiss it.",
    "Tokens per step": "What each step computed: prompt tokens and decode tokens. The dashed line is the prefill budget; the dots below are the tokens that the lanes got, so a gap is a pause. With speculative tokens, decode tokens include drafts, and the share of drafts that were right is beside the title.",
    "Time per step": "How long each step took: the host prepares it and samples its tokens, the device runs the model. On a CPU, host and device are the same.",
    "TTFT": "Time to first token, as the share of requests whose first token came within a given time.",
    "KV over time": "Blocks of the KV cache: shared by several requests, held by one, cached for later requests, free. Below, for a model with recurrent layers: how many state slots requests hold, and how many states are kept.",
    "Steps": "One row per request: when it waited, when its prompt was computed, when it decoded. The requests view is a table of their results.",
    "KV blocks": "Every block of the KV cache, in the colour of the lane that holds it, or in a grey for other requests; the one that is pointed at has a colour. A shared block is inverted and shows how many requests hold it. Below, for a model with recurrent layers: a state slot for each running request, and the states that the prefix cache keeps.",
}


# The contents of a term's popover besides its meaning: an example with notes; the figures to watch (between ** and **)
# when it changes; its cost; and vLLM's nearest metrics.
_MORE: dict[str, dict[str, Any]] = {
    "tokens/s": {
        "watch": "It rises with **Max batch** until memory or the processor is fully used.",
        "vllm": ["vllm:generation_tokens_total"],
    },
    "run / wait": {
        "watch": "If requests **wait** for long, the batch, the KV blocks or the machine is full.",
        "vllm": ["vllm:num_requests_running", "vllm:num_requests_waiting"],
    },
    "TTFT p50 / p95": {
        "watch": "It rises with a queue, with long prompts, and when the **Prefill budget** falls.",
        "vllm": ["vllm:time_to_first_token_seconds"],
    },
    "ITL p50 / p99": {
        "watch": "**p99** shows the steps that computed prompts as well; if these are much longer, a smaller **Prefill budget** lowers it.",
        "vllm": ["vllm:inter_token_latency_seconds"],
    },
    "KV in use": {
        "watch": "Near 100 %, requests wait for blocks, and running ones are **preempted**.",
        "vllm": ["vllm:kv_cache_usage_perc"],
    },
    "saved by sharing": {
        "watch": "It grows with **Prefix cache** and **Same-step sharing** when prompts begin with the same tokens.",
        "vllm": ["vllm:prefix_cache_hits_total"],
    },
    "Scheduler": {"watch": "**TTFT** against **ITL**: most of its limits trade one for the other."},
    "Optimisations": {"watch": "Send the same burst with one on and off: its **seed** determines the prompts."},
    "Burst size": {
        "watch": "**Tokens per step** when it arrives, and the worst **ITL** of answers that stream.",
        "costs": "Meanwhile requests may wait, and tokens come more slowly if a larger batch makes steps longer.",
    },
    "Answer length": {
        "watch": "How long **run** stays high; **KV in use** grows with every token.",
        "costs": "Longer answers hold their blocks for longer.",
    },
    "unique": {"watch": "**saved by sharing** hardly grows. This is what a burst costs without sharing."},
    "equal": {"watch": "**saved by sharing**: all prompts but one."},
    "same start": {"watch": "**saved by sharing**, and the blocks with several holders in **KV blocks**."},
    "mixed lengths": {"watch": "The worst **ITL** without a **Prefill budget**, and **TTFT** of the short prompts."},
    "Steady traffic": {
        "watch": "**run / wait**: the engine keeps up while no request waits for long.",
        "costs": "It shares the engine with the lanes. It stops by itself when too many of its requests wait.",
    },
    "Rate": {
        "watch": "**TTFT p95** rises steeply where the engine no longer keeps up.",
        "costs": "Above the rate that the engine can sustain, the queue grows until the rate falls.",
    },
    "Your own traffic": {
        "example": '{"arrival_s": 0.5, "prompt": "Why?", "answer_tokens": 32}',
        "notes": "Instead of prompt, prompt_tokens can give only its length. The traffic.jsonl of a run is such a file.",
        "watch": "**run / wait**: the engine keeps up while no request waits for long.",
        "costs": "It shares the engine with the lanes. It stops by itself when too many of its requests wait.",
    },
    "Inter-token latency": {"watch": "Dots far above the others: click one to read why it was slow."},
    "Tokens per step": {"watch": "A tall dark bar causes long pauses in **Inter-token latency** at the same time."},
    "Time per step": {"watch": "If small steps spend much time on the host, more requests in a batch share it."},
    "TTFT": {
        "watch": "The further left the curve, the sooner answers begin. Dashed is the latest earlier burst that can be compared: as many requests, prompts and answers of the same length, the same slow motion. Without bursts, it is what was answered before the last change of a setting."
    },
    "KV over time": {
        "watch": "When there is no room left between **active** and the top, the next request waits, or one is preempted. It also waits when all **slots** are in use."
    },
    "KV blocks": {"watch": "Cells with a number are shared: their memory is held once for several requests."},
    "Steps": {"watch": "A dotted line waits, a wide dark bar computes a prompt, and a diamond is a preemption."},
}

# What the page shows, in the help.
ABOUT = (
    "Up to eight chats, the lanes, share one engine, which computes all of their answers together, step by step.",
    "Burst sends many more requests at once; the charts show what the readers of the other answers notice of it.",
    "Inter-token latency has a dot for each token: how long its reader waited for it. Click one to see why.",
    "This step shows the engine at work. Steps and Tokens per step show what each step computed, KV blocks the memory that each request holds.",
    "The settings on the left act on the next step; a vertical line in every chart marks each change.",
    "Traces saves what happened.",
)

# What the field calls things; README.md has the same table.
WORDS = {
    "token": "a piece of text, about three quarters of a word; the unit that the model reads and writes",
    "prefill": "computing the keys and values of a prompt's tokens, many at once, before the first token of the answer",
    "decode": "computing one more token of an answer; each step decodes one token for every running request",
    "KV block": "memory for the keys and values of 16 tokens; a request holds a list of blocks (paged attention)",
    "TTFT": "time to first token: from submitting a request to the first token of its answer",
    "TTFT from arrival": "the same from the request's intended arrival; longer if a client had to wait before it could submit",
    "ITL": "inter-token latency: the pause between two tokens of one answer",
    "p50, p95, p99": "the value that 50, 95 or 99% of the figures do not exceed",
    "goodput": "the requests per second that are answered within the limits of TTFT and ITL",
    "slow motion": "every step is stretched by a factor: “50 ms at ×2” would be 25 ms without it",
    "batch": "the requests that are computed together in one step",
    "prefix cache": "blocks of earlier prompts that are kept, so that a prompt with the same beginning need not compute them again",
    "chunked prefill": "computing a long prompt in parts, so that other requests can decode in between",
    "preemption": "taking a request's blocks away when memory runs out; the request waits, and its blocks are computed again later, or copied to host memory and back",
}

# The glossary for the page's scripts.
GLOSSARY = {term: {"what": what, **_MORE.get(term, {})} for term, what in TERMS.items()}


def _explained(kind: type) -> dict[str, str]:
    """Returns explanations such as ``Temperature (temperature): what it does``, by the control's id."""
    named = {name: setting for name, setting in settings_of(kind).items() if setting.control}
    return {it.control: f"{it.label} ({name}): {it.explanation}" for name, it in named.items()}


# For Gradio's own controls without a popover, by element id.
CONTROLS = {
    **_explained(Settings),
    "burst": "Send a burst (key b).",
    "stop": "Stop this tab's lanes and traffic (key .).",
    "to": "Which lanes the prompt goes to; a click in a lane chooses that one.",
    "lane-count": "How many lanes are shown.",
    "send": "Send the prompt (Enter).",
    "sampling": "How answers are sampled: system prompt, temperature and the like, for all lanes or for one.",
    "sampling-lane": "Which lanes the settings below apply to. A lane's own settings take precedence over those of all lanes.",
    "sampling-reset": "Reset this lane to the settings of all lanes, or all lanes to their initial settings.",
}

KEYS = (
    ("Enter", "send the prompt"),
    ("b", "burst"),
    ("d", "Show me: play the first demo; n or → continues it, Esc ends it"),
    (".", "stop all of this tab's requests"),
    ("1 – 8", "go to a lane"),
    (
        "← ↑ → ↓",
        "in a lane: from token to token; in Steps: from step to step and row to row; Enter asks why it took so long; in KV blocks: choose a block, Enter opens it; in requests: from row to row, Enter selects it everywhere, → goes to “Why not more?”",
    ),
    ("Shift ← →", "in Steps: move in time; + and − zoom"),
    ("Esc", "back to now, close this, leave the prompt, which then goes to all lanes"),
    ("?", "this help"),
)
