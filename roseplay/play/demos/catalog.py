"""The demos: each asks a question, runs the same traffic under two settings, and answers it with the figures of the run."""

from __future__ import annotations

from dataclasses import replace

from roseplay.play.demos.chat_demos import FAIR, SPECULATION
from roseplay.play.demos.script import NO_SHARING, SLOW_MOTION, Demo, DemoBurst, DemoClients, reading, scene
from roseplay.traffic.prompts import PromptMix

_FIRST_TOKENS = (
    "The price: first tokens come {first_token_later}.",
    "The price: the last first tokens come {last_token_later}.",
    "First tokens come {first_token_sooner}.",
)

_TOO_EARLY_FIRST = "**The answers had not begun when the {first_prompts} prompts arrived,** so that no reader waited."
_TOO_EARLY = (
    "**The answers had not begun when one of the bursts of {second_prompts} prompts arrived:** nothing can be compared."
)

_MIX = DemoBurst(name="first", kind="mix")

BUDGET = Demo(
    name="budget",
    title="Burst and budget",
    shows="one slider turns a long pause into short ones",
    knobs={"prefill_max_tokens": None, "step_max_tokens": None, "max_batch_size": 32},
    scenes=(
        reading(
            "**{size} prompts will interrupt four readers. What changes if the prefill budget is then [[{budget}]]?**",
            answers={
                "worst_rises": "Their longest pause grows",
                "worst_falls": "Their longest pause shrinks",
                "worst_same": "Nothing",
            },
        ),
        reading(
            "**Now {size} prompts arrive, without a budget.** A dot in Inter-token latency is how long a reader waited.",
            SLOW_MOTION,
            burst=_MIX,
        ),
        scene(
            (
                "**The ringed dot is the readers' longest pause, {first_worst}:** {first_who_paused} waited for the step with the prompts.",
                "**The ringed dot is the readers' longest pause, {first_worst}.**",
                _TOO_EARLY_FIRST,
            ),
            rings=(("gap", "first"), ("step", "first")),
        ),
        reading(
            "**The prefill budget goes down to [[{budget}]], and the same {size} prompts arrive.** A step computes at most {budget} of their tokens.",
            knobs={"prefill_max_tokens": 64},
            burst=replace(_MIX, name="second"),
            rings=("rp-budget-row",),
        ),
        scene(
            (
                "**With budget [[{budget}]] the longest pause is {worst_falls}.**",
                "**With budget [[{budget}]] the longest pause is longer:** {worst_rises}.",
                "**With budget [[{budget}]] the longest pause shows no clear difference:** {worst_same}.",
                _TOO_EARLY,
            ),
            _FIRST_TOKENS,
            rings=("rp-pair", ("rows", "second")),
        ),
    ),
    after="Try it yourself: move Prefill budget, press Burst.",
    slow_prompts=True,
)

_DOCUMENT = DemoBurst(name="first", kind="shared_head")

PREFIX = Demo(
    name="prefix",
    title="Prefix cache",
    shows="many questions about one document",
    knobs={"prefill_max_tokens": None, **NO_SHARING},
    scenes=(
        reading(
            "**{size} questions about one document arrive. When do answers begin once its blocks are [[shared]]?**",
            answers={
                "first_token_same": "As late as when they are not",
                "first_token_falls": "Sooner",
                "first_token_rises": "Later",
            },
        ),
        reading(
            "**The {size} questions arrive.** Each computes the document for itself.", SLOW_MOTION, burst=_DOCUMENT
        ),
        scene(
            ("**All {first_computed} prompt tokens were computed,** the document anew for each question.",),
            "Half of the first tokens came within {first_first_token}.",
            rings=(("rp-tokens", "first"),),
        ),
        reading(
            "**Prefix cache and same-step sharing are [[on]], and the same {size} questions arrive.** Shared blocks are black in the map.",
            knobs={"prefix_cache": True, "same_step_sharing": True},
            burst=replace(_DOCUMENT, name="second"),
            rings=("prefix-cache", "sharing"),
        ),
        scene(
            (
                "**Half of the first tokens now come within {first_token_falls}.**",
                "**Half of the first tokens now take longer:** {first_token_rises}.",
                "**First tokens show no clear difference:** {first_token_same}.",
            ),
            rings=("rp-pair", "rp-ttft"),
        ),
    ),
    after="Try it yourself: open All controls, switch Prefix cache, press Burst with same start.",
    slow_prompts=True,
)

_UNIQUE = DemoBurst(name="first", kind="unique")

BATCH = Demo(
    name="batch",
    title="Batch size",
    shows="more answers at once, in larger steps",
    knobs={"max_batch_size": 6, "prefill_max_tokens": None},
    scenes=(
        reading(
            "**{size} prompts share steps with room for [[6]] answers. With room for [[32]], when do the last answers begin?**",
            answers={"last_token_rises": "Later", "last_token_falls": "Sooner", "last_token_same": "At the same time"},
        ),
        reading(
            "**{size} prompts arrive.** What does not fit into the batch waits in the queue.",
            SLOW_MOTION,
            burst=_UNIQUE,
        ),
        scene(
            ("**{first_waited_for_batch} prompts waited for a place,** dotted in Steps.",),
            "The last answers began after {first_last_token}, and a token took {first_gap}.",
            rings=(("rows", "first"),),
        ),
        reading(
            "**Max batch goes up to [[32]], and the same {size} prompts arrive.** Up to 32 answers share a step now.",
            knobs={"max_batch_size": 32},
            burst=replace(_UNIQUE, name="second"),
            rings=("max-batch",),
        ),
        scene(
            (
                "**The last answers now begin after {last_token_falls}.**",
                "**The last answers now begin later:** after {last_token_rises}.",
                "**The last answers begin at about the same time:** after {last_token_same}.",
            ),
            (
                "The price: a token takes {gap_rises}.",
                "A token takes {gap_falls}.",
                "A token takes as long: {gap_same}.",
            ),
            rings=("rp-pair", ("rows", "second")),
        ),
    ),
    after="Try it yourself: move Max batch, press Burst.",
)

_SHORT = DemoBurst(name="first", kind="unique", answer=16, mix=PromptMix(repeats=(4,)))

INTERVAL = Demo(
    name="interval",
    title="Prefill interval",
    shows="decode steps between those with prompts",
    knobs={"prefill_interval": 0, "prefill_max_tokens": 128, "max_batch_size": 32, **NO_SHARING},
    watched_s=2.0,
    scenes=(
        reading(
            "**{size} prompts arrive. If [[4]] steps without prompts follow each with some, how long do readers wait?**",
            answers={"reader_rises": "Longer", "reader_same": "As long", "reader_falls": "Not as long"},
        ),
        reading(
            "**{size} prompts arrive.** Step after step computes [[128]] of their tokens, and readers wait for each.",
            SLOW_MOTION,
            burst=_SHORT,
        ),
        scene(
            (
                "**Until all had their first tokens, a reader usually waited {first_reader} for a token:** every step computed prompts.",
                _TOO_EARLY_FIRST,
            ),
            rings=(("rp-tokens", "first"),),
        ),
        reading(
            "**Prefill interval goes to [[4]], and the same {size} prompts arrive.** Four steps without prompts follow each with some.",
            knobs={"prefill_interval": 4},
            burst=replace(_SHORT, name="second"),
            rings=("prefill-interval",),
        ),
        scene(
            (
                "**A reader now usually waits {reader_falls} for a token.**",
                "**A reader now usually waits longer:** {reader_rises}.",
                "**A reader's usual wait shows no clear difference:** {reader_same}.",
                _TOO_EARLY,
            ),
            _FIRST_TOKENS,
            rings=("rp-pair", ("rows", "second")),
        ),
    ),
    after="Try it yourself: open All controls and More settings, move Prefill interval, press Burst.",
    slow_prompts=True,
)

# Prompts that share nothing, so that each holds blocks of its own.
_FILLING = DemoBurst(name="first", kind="unique", size=40, answer=48, mix=PromptMix(repeats=(12,)))

PRESSURE = Demo(
    name="pressure",
    title="KV pressure",
    shows="memory runs out: compute again, or swap",
    knobs={"max_batch_size": 64, "prefill_max_tokens": None, "preemption_mode": "recompute", **NO_SHARING},
    scenes=(
        reading(
            "**Memory will run out, and answers lose their blocks. If blocks are [[swapped]], how many tokens are computed again?**",
            answers={"recomputed_rises": "More", "recomputed_same": "As many", "recomputed_falls": "Fewer"},
        ),
        reading(
            "**{size} prompts arrive.** Each answer needs more blocks as it grows, until none is free.",
            SLOW_MOTION,
            burst=_FILLING,
            rings=("rp-blockmap",),
        ),
        scene(
            (
                "**Memory ran out: {first_preempted} answers lost their blocks** (diamonds), and {first_recomputed} tokens were computed again.",
                "**{first_waited_for_blocks} prompts waited for blocks** until others had ended, and no answer lost any.",
            ),
            rings=(("preempted", "first"),),
        ),
        reading(
            "**Preemption goes to [[swap]], and the same {size} prompts arrive.** Lost blocks are first copied to the host's memory.",
            knobs={"preemption_mode": "swap"},
            burst=replace(_FILLING, name="second"),
            rings=("preemption", "rp-blockmap"),
        ),
        scene(
            (
                "**With [[swap]], {recomputed_falls} tokens were computed again.**",
                "**With [[swap]], more tokens were computed again:** {recomputed_rises}.",
                "**With [[swap]], what is computed again shows no clear difference:** {recomputed_same}.",
                "**{second_none_preempted} answer lost its blocks this time,** so that none could be swapped.",
            ),
            ("The last answers began {last_token_sooner}.", "The price: the last answers began {last_token_later}."),
            rings=("rp-pair", ("preempted", "second")),
        ),
    ),
    after="Try it yourself: open All controls and More settings, choose a preemption, press Burst with size 64.",
    fills_pool=True,
)

CLIFF = Demo(
    name="cliff",
    title="KV cliff",
    shows="where more clients no longer fit into memory",
    knobs={"max_batch_size": 256, "prefill_max_tokens": None, "step_max_tokens": None, **NO_SHARING},
    scenes=(
        reading(
            "**32 clients send long prompts, then [[128]]; memory has room for {client_fit}. How much later are first tokens?**",
            answers={"clients_within": "Up to 4 times", "clients_beyond": "More than 4 times"},
        ),
        reading(
            "**32 clients send prompts of {client_prompt} tokens.** Each sends its next one when it has its answer.",
            clients=DemoClients(name="few", count=32),
        ),
        reading(
            ("**First tokens come after {few_first_token} on average.** {few_kv} % of the KV blocks are in use.",),
            rings=("rp-ttft", "rp-blockmap"),
        ),
        reading(
            "**Now there are [[128]] clients.** The KV blocks have room for the requests of {client_fit}.",
            clients=DemoClients(name="many", count=128),
            rings=("rp-blockmap",),
        ),
        reading(
            (
                "**{many_kv} % of the KV blocks are in use,** and {many_waiting} prompts wait until answers end.",
                "**{many_kv} % of the KV blocks are in use,** and no prompt waits.",
            ),
            settles=True,
            rings=("rp-kvtime",),
        ),
        reading(
            (
                "**First tokens come after {many_first_token}, {clients_beyond} times as late as with 32 clients.**",
                "**First tokens come after {many_first_token}, {clients_within} times as late as with 32 clients.**",
            ),
            "{published_by} had {published_many}.",
            rings=("rp-ttft",),
        ),
    ),
    after="Try it yourself: open All controls, play a file of long prompts under Your own traffic, and watch KV in use.",
)

DEMOS = {demo.name: demo for demo in (BUDGET, PREFIX, BATCH, SPECULATION, FAIR, INTERVAL, PRESSURE, CLIFF)}
