"""Explanations of the page's terms, shown beside them on request or when the pointer rests on them."""

from __future__ import annotations

from typing import Any

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.settings import defaults_of, settings_of
from roseplay.traffic.run_figures import DEFINITIONS

TERMS = {
    "tokens / s": "Tokens generated a second, by all requests together, over the last two seconds.",
    "run / wait": "Requests that are being computed, and requests that wait to be admitted.",
    "TTFT p50 / p95": f"{DEFINITIONS['ttft']} Median, and the value that 95 % stay below, over the time that the charts show.",
    "ITL p50 / p99": f"{DEFINITIONS['itl']} Median, and the value that 99 % of gaps stay below, over the time that the charts show.",
    "KV in use": "Share of the KV blocks that running requests hold. The keys and values of every token live in such blocks.",
    "saved by sharing": "Prompt tokens nobody had to compute: found in the prefix cache, or computed by another request of the same step.",
    "prefix hit rate": "Of the prompt tokens that the server looked up in its prefix cache, the share that it found, over the time that the charts show and by all of its clients.",
    "Requests over time": "One row a request: dotted until its first token arrived, then a line while its tokens came. Where the server says how long a request waited, its prompt is a dark box.",
    "Replicas": "The engines behind the server's one address, as its metrics tell them apart: what each runs, how full its KV cache is, and how much of its prompts it found cached.",
    "Not reported": "What this server does not report, and so the page cannot show.",
    "Scheduler": "Decides in every step who computes which tokens. A change acts on the next step.",
    "Optimisations": "Each can be switched off while the engine runs, to see what it does.",
    "Traffic": "What is sent beside the lanes: bursts, steady traffic, and requests from a file.",
    "Burst size": "Requests that one press of Burst sends, all at once.",
    "Answer length": "Tokens that each request of a burst or of steady traffic generates, no more and no fewer.",
    "unique": "Each prompt ends differently: nothing to share but the few tokens they begin with.",
    "equal": "All prompts are the same: one of them is computed, the others share its blocks.",
    "shared head": "512 tokens in common, then a question each, as under one long system prompt.",
    "1·1·1·64 mix": "Every fourth prompt is 64 times as long as the others, which may have to wait for it.",
    "Steady traffic": "Requests arrive at a rate, whether or not earlier ones are answered, for as long as this tab is open. Poisson draws the gaps between them, even keeps them equal.",
    "Rate": "Steady requests a second, on average.",
    "Your own traffic": "Requests from a file, sent at the file's times whether or not earlier ones are answered: JSONL, a line a request, CSV with the same columns, or ShareGPT's conversations.",
    "Last burst": "The newest burst of anyone: what its prompts cost, and what sharing saved of them.",
    "In all": "Everything since the server started, of anyone: lanes, bursts and programs. What a preempted request computes again is not counted again.",
    "blocks saved": "Whole KV blocks that saved prompt tokens would have filled.",
    "from the prefix cache": "Saved prompt tokens that an earlier request had computed.",
    "from the same step": "Saved prompt tokens that another request of the same step computed.",
    "Inter-token latency": "Every token's gap to the one before it in the same answer. A step that also computes prompts makes everybody wait.",
    "Tokens per step": "What each step computed: prompt tokens and decode tokens. The dashed line is the prefill budget.",
    "Batch per step": "How many requests ran in each step, against the most that may: max batch.",
    "Time per step": "How long each step took: the host prepares it and draws its tokens, the device computes the model. On a CPU both are the same machine.",
    "TTFT": "Time to first token, as the share of requests that had theirs within a time.",
    "KV over time": "Blocks of the KV cache: shared by several requests, held by one, kept for who comes back, free. Below, of a model with recurrent layers: how many state slots requests hold, and how many states are kept.",
    "Steps": "One row a request: when it waited, when its prompt was computed, when it decoded. As requests: what became of each, as a table.",
    "KV blocks": "Every block of the KV cache in the colour of the request that holds it; inverted with the number of holders where several share it. Below, of a model with recurrent layers: a state slot for each running request, and the states that the prefix cache keeps.",
    "paused by the lab": "The Lab is measuring: it has the machine to itself, and what was sent here goes on when it is done.",
    "Scenario": "Traffic that shows what one setting does. Its seed decides the prompts and when they arrive, the same for A and B.",
    "Inter-token latency, tail": "The share of gaps between two tokens that are at most this long. Both axes are logarithmic, so that the worst one in a thousand has as much room as the middle. A thin line is one repeat, the strong one all of them.",
    "Time to first token, A and B": "From submitting a request to its first token, as the share of requests that had theirs within a time.",
    "Tokens per step, A over B": "What each step of one run computed, A above B on the same clock. A bar is as wide as its step lasted; dark steps held prompts.",
    "Settings": "What A and B run with. Rows that differ stand first. Every cell can be edited; the engine is made anew for each run, so its own settings can differ too.",
    "Result": "Medians over the repeats. Rest on a figure to see from where to where the repeats went.",
    "Goodput": "Counts only requests within both limits (the SLO): first token within the one, 99 % of their own gaps within the other.",
    "Time to first token, p95": "The time to first token that 95 % of the requests stay below: medians over the repeats, the thin line their range. The dotted line is the promise.",
    "Inter-token latency, p99": "The gap that 99 % of all gaps between two tokens stay below: medians over the repeats, the thin line their range. The dotted line is the promise.",
    "Goodput, by value": "Requests a second that keep both limits, at each value: first token within the one, 99 % of their own gaps within the other.",
    "Where the answer can still be": "The values that are left after each try. A try that keeps both promises, or does not, rules out those beyond it.",
    "Measured": "Each value that was measured: medians over the repeats, and from where to where they went.",
    "Settings, as the engine runs now": "A sweep and a search run with the settings that the engine has now, but for the one that they vary.",
    "So far": "Sweeps or searches that this browser keeps. One that is opened is shown; the one before it stays as a dashed line.",
    "What to look for": "Before a run, where to look; after it, what this run showed. The second sentence names the price.",
}


# The contents of a term's popover besides its meaning: an example with notes; the figures to watch (between ** and **)
# when it changes; its cost; and vLLM's nearest metrics.
_MORE: dict[str, dict[str, Any]] = {
    "tokens / s": {
        "watch": "It rises with **Max batch** until memory or the processor is used up.",
        "vllm": ["vllm:generation_tokens_total"],
    },
    "run / wait": {
        "watch": "Requests that **wait** for long: the batch, the KV blocks or the machine is full.",
        "vllm": ["vllm:num_requests_running", "vllm:num_requests_waiting"],
    },
    "TTFT p50 / p95": {
        "watch": "It rises with a queue, with long prompts, and when the **Prefill budget** falls.",
        "vllm": ["vllm:time_to_first_token_seconds"],
    },
    "ITL p50 / p99": {
        "watch": "**p99** shows the steps that computed prompts as well; a smaller **Prefill budget** lowers it.",
        "vllm": ["vllm:inter_token_latency_seconds"],
    },
    "KV in use": {
        "watch": "Near 100 %, requests wait for blocks, and running ones are **preempted**.",
        "vllm": ["vllm:kv_cache_usage_perc"],
    },
    "saved by sharing": {
        "watch": "It grows with **Prefix cache** and **Same-step sharing** where prompts begin alike.",
        "vllm": ["vllm:prefix_cache_hits_total"],
    },
    "Scheduler": {"watch": "**TTFT** against **ITL**: most of its limits trade one for the other."},
    "Optimisations": {"watch": "The same burst with one on and off: its **seed** decides the prompts."},
    "Burst size": {
        "watch": "**Tokens per step** when it arrives, and the worst **ITL** of answers that stream.",
        "costs": "More requests wait, and everybody's tokens come more slowly meanwhile.",
    },
    "Answer length": {
        "watch": "How long **run** stays high; **KV in use** grows with every token.",
        "costs": "Longer answers hold their blocks for longer.",
    },
    "unique": {"watch": "**saved by sharing** hardly grows: what a burst costs without sharing."},
    "equal": {"watch": "**saved by sharing**: all prompts but one."},
    "shared head": {"watch": "**saved by sharing**, and the blocks with several holders in **KV blocks**."},
    "1·1·1·64 mix": {"watch": "The worst **ITL** without a **Prefill budget**, and **TTFT** of the short prompts."},
    "Steady traffic": {
        "watch": "**run / wait**: the engine keeps up while nobody waits for long.",
        "costs": "It shares the engine with the lanes. It stops by itself when too many of its requests wait.",
    },
    "Rate": {
        "watch": "**TTFT p95** rises steeply where the engine no longer keeps up.",
        "costs": "A queue that grows until the rate falls.",
    },
    "Your own traffic": {
        "example": '{"arrival_s": 0.5, "prompt": "Why?", "answer_tokens": 32}',
        "notes": "prompt_tokens, a length, may take the place of prompt. The traffic.jsonl of a run is such a file.",
        "watch": "**run / wait**: the engine keeps up while nobody waits for long.",
        "costs": "It shares the engine with the lanes. It stops by itself when too many of its requests wait.",
    },
    "Inter-token latency": {"watch": "Dots far above the others: click one to read why it was slow."},
    "Tokens per step": {"watch": "A high dark bar makes a gap in **Inter-token latency** at the same time."},
    "Batch per step": {"watch": "A full batch while requests **wait**: **Max batch** is the limit."},
    "Time per step": {"watch": "Much host time on small steps: more requests in a batch share it."},
    "TTFT": {"watch": "The further left the curve, the sooner answers begin. The curve before stays for comparison."},
    "KV over time": {
        "watch": "No room left between **active** and the top: the next request waits, or one is preempted. Full **slots** make it wait too."
    },
    "KV blocks": {"watch": "Cells with a number are shared: their memory is held once for several requests."},
    "Steps": {"watch": "Dotted lines wait, wide dark bars compute a prompt; a diamond is a preemption."},
}

# The glossary for the page's scripts.
GLOSSARY = {term: {"what": what, **_MORE.get(term, {})} for term, what in TERMS.items()}


def _explained(kind: type) -> dict[str, str]:
    """Returns explanations such as ``Temperature (temperature): what it does``, by the control's id."""
    named = {name: setting for name, setting in settings_of(kind).items() if setting.control}
    return {it.control: f"{it.label} ({name}): {it.explanation}" for name, it in named.items()}


# For Gradio's own controls without a popover, by element id.
CONTROLS = {
    **_explained(SamplingParams),
    "burst": "Send a burst (key b).",
    "stop": "Stop this tab's lanes and traffic (key .).",
    "to": "Which lanes the prompt goes to.",
    "lane-count": "How many lanes are shown.",
    "send": "Send the prompt (Enter).",
    "sampling": "How answers are drawn: system prompt, temperature and the like, for all lanes or for one.",
    "sampling-lane": "Which lanes the settings below apply to. What a lane has of its own wins over all lanes.",
    "sampling-reset": "Give this lane the settings of all lanes, or all lanes those they began with.",
    "sampling-system": "System prompt: what the model is told before the conversation. It counts as prompt tokens.",
}

# For the Lab: its settings by name, its controls by element id, its figures by name.
LAB = {
    **{name: f"{name}: {it.explanation}" for kind in (EngineConfig, Knobs) for name, it in settings_of(kind).items()},
    "slow_motion": "slow_motion: refused here, since it would stretch what is measured.",
    "lab-seed": "Decides the prompts and when they arrive. The same seed sends the same again.",
    "lab-repeats": "How often each arm runs. A and B take turns, so that a machine that slows down slows both.",
    "lab-length": "How many times the scenario's requests are sent: a longer run has steadier percentiles.",
    "lab-max-spread": "After the repeats above, repeat until the median of the scenario's figure is known to within so many percent, at most 20 times. Empty: do not.",
    "lab-num_requests": "Requests that the scenario sends.",
    "lab-rate_per_s": "Requests that arrive in a second, on average.",
    "lab-max_new_tokens": "Tokens of each answer.",
    "lab-run": "Measure: A and B in turn, or one value after the other, each time with an empty cache (key r).",
    "lab-stop": "Stop the run. Repeats that both arms have had, and values that are measured, are kept (key .).",
    "lab-results": "Results that this browser keeps, and files of results.",
    "lab-ttft-limit": "The limit of TTFT: milliseconds until a request's first token.",
    "lab-itl-limit": "The limit of ITL: milliseconds that 99 % of a request's gaps stay within.",
    "lab-report": "This result as one page that can be sent and opened anywhere.",
    "lab-export": "This result as a JSON file; Results opens it again.",
    "lab-link": "An address that opens this result, as long as this server runs.",
    **DEFINITIONS,
    "itl": f"{DEFINITIONS['itl'].removesuffix('.')}, all gaps of a run pooled.",
    "same_tokens": "Whether A and B gave the very same tokens. Where two tokens are nearly as likely, rounding may choose between them.",
}

# The catalogue of settings for the page's scripts.
SETTINGS = {
    group: {
        name: {**setting.to_dict(), "default": defaults_of(kind)[name]} for name, setting in settings_of(kind).items()
    }
    for group, kind in (("knobs", Knobs), ("config", EngineConfig))
}

KEYS = (
    ("Enter", "send the prompt"),
    ("b", "burst"),
    ("d", "Show me: play the first demo; n or → goes on, Esc ends it"),
    ("r", "in the Lab: run A and B"),
    (".", "stop all of this tab's requests; in the Lab: stop the run"),
    ("1 – 8", "go to a lane"),
    (
        "← ↑ → ↓",
        "in a lane: from token to token; in Steps: from step to step and row to row; Enter asks why it took so long; in KV blocks: choose a block, Enter opens it; in requests: from row to row, Enter selects it everywhere, → goes to why no more was cached",
    ),
    ("Shift ← →", "in Steps: move in time; + and − zoom"),
    ("Esc", "back to now, close this"),
    ("?", "this list"),
)
