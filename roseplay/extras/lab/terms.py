"""What the Lab's controls, figures and views mean, for its tab."""

from __future__ import annotations

from roseplay.config import EngineConfig, Knobs
from roseplay.settings import settings_of
from roseplay.traffic.run_figures import DEFINITIONS

PAUSED = "The Lab is measuring and needs the machine to itself. Requests sent here continue when it is done."

# Terms that are explained in place.
TERMS = {
    "Scenario": "Traffic that shows what one setting does. Its seed determines the prompts and when they arrive, which is the same for A and B.",
    "Inter-token latency, tail": "The share of the pauses between two tokens that are at most this long. Both axes are logarithmic, so that the longest 0.1 % have as much room as the middle. A thin line is one repeat, the thick line all of them.",
    "Time to first token, A and B": "From submitting a request to its first token, as the share of requests whose first token came within a given time.",
    "Tokens per step, A over B": "What each step of one run computed, A above B on the same clock. The width of a bar is the duration of its step; dark bars include prompt tokens.",
    "Settings": "What A and B run with. Rows that differ come first. Every cell can be edited. Each run starts a new engine, so engine settings can differ too.",
    "Result": "Medians over the repeats. Point at a value to see the range of the repeats.",
    "Goodput": "Requests within both limits: the first token within that of TTFT, and 99 % of the pauses between the request's tokens within that of ITL.",
    "Time to first token, p95": "The time to first token that 95 % of the requests stay below: the median over the repeats, with a thin line for their range. The dotted line is the limit.",
    "Inter-token latency, p99": "The ITL that 99 % of all pauses between two tokens stay below: the median over the repeats, with a thin line for their range. The dotted line is the limit.",
    "Goodput, by value": "Requests per second within both limits, at each value. The outline is all requests that were answered.",
    "Where the answer can still be": "The values that are left after each try. Each try rules out the values on one side of it.",
    "Measured": "Each value that was measured, in A and in B if a sweep has both: medians and ranges over the repeats.",
    "Settings, as the engine runs now": "A search runs with the settings that the engine has now, except for the one that it varies.",
    "So far": "Sweeps or searches that this browser keeps. Open one to show it; the previous one stays as a dashed line.",
    "What to look for": "Before a run: where to look. After it: what the run showed. The second sentence names the price.",
}

# Settings by name, its controls by element id, its figures by name.
MEANINGS = {
    **{name: f"{name}: {it.explanation}" for kind in (EngineConfig, Knobs) for name, it in settings_of(kind).items()},
    "slow_motion": "slow_motion: refused here, since it would stretch the times that are measured.",
    "lab-seed": "Determines the prompts and when they arrive. The same seed sends the same requests again.",
    "lab-repeats": "How often each arm runs. A and B take turns, so that a machine that slows down affects both. On simulated hardware, repeats would be equal: each runs once.",
    "lab-length": "How many times the scenario's requests are sent: a longer run has steadier percentiles.",
    "lab-max-spread": "After the repeats above, repeat until the spread of the scenario's main figure (the range in which its true median lies) is at most this percentage of the median, up to 20 repeats. Empty: no further repeats.",
    "lab-sweep-to": "The last rate. Empty: the rate doubles until the limits of TTFT and ITL are exceeded.",
    "lab-sweep-arms": "The settings besides the one that the sweep varies: those of the running engine, or those of A and of B, which Compare shows. A and B are then both measured at each value, and the result says where they cross.",
    "lab-num_requests": "Requests that the scenario sends.",
    "lab-rate_per_s": "Requests that arrive per second, on average.",
    "lab-max_new_tokens": "Tokens of each answer.",
    "regret": "Whether another of the values tried may be better, within the spread of the repeats or, on simulated hardware, the error of the simulation. A prefill budget is judged by TTFT p95, a batch by throughput.",
    "lab-run": "Measure A and B in turn, or one value after the other, each time with an empty cache (key r).",
    "lab-stop": "Stop the run. Repeats that both arms have completed and values that have been measured are kept (key .).",
    "lab-results": "Results that this browser keeps, and files of results.",
    "lab-ttft-limit": "The limit of TTFT, the time until a request's first token; in a sweep also of a value's TTFT p95.",
    "lab-itl-limit": "The limit of ITL, within which 99 % of the pauses between a request's tokens must be; in a sweep also of a value's ITL p99.",
    "lab-report": "This result as one page that can be sent and opened anywhere.",
    "lab-export": "This result as a JSON file; Results opens it again.",
    "lab-link": "An address that opens this result, as long as this server runs.",
    **DEFINITIONS,
    "itl": f"{DEFINITIONS['itl']} All pauses of a run count together.",
    "same_tokens": "Whether A and B generated exactly the same tokens. Where two tokens are almost equally likely, rounding may decide between them.",
}
