"""The demos."""

from __future__ import annotations

from dataclasses import replace

from roseplay.play.demos.chat_demos import FAIR, PINNED, SPECULATION
from roseplay.play.demos.script import NO_SHARING, SLOW_MOTION, Demo, DemoBurst, DemoClients, Scene, reading, scene
from roseplay.traffic.prompts import PromptMix

STORIES = (
    "Tell me a story about a fox.",
    "Tell me a story about a robot.",
    "Tell me a story about a clock.",
    "Tell me a story about a cat.",
)

_LONG = ("Every fourth is long: {long_prompt} tokens.", "Every fourth is long.")  # a server reports lengths later

_READING = reading(
    "**Four people read along.**",
    "Each dot in Inter-token latency is one token: how long its reader waited for it.",
    SLOW_MOTION,
)


def _again(burst: DemoBurst, *, stories: bool = True) -> Scene:
    """Returns the scene in which the prompts of the first burst arrive again."""
    return scene("**The same {size} prompts arrive again.**", stories=stories, burst=replace(burst, name="second"))


BUDGET = Demo(
    name="budget",
    title="Burst and budget",
    shows="one slider turns a long pause into short ones",
    knobs={"prefill_max_tokens": None, "step_max_tokens": None, "max_batch_size": 32},
    scenes=(
        _READING,
        reading(
            "**Now {size} prompts arrive at once.**",
            _LONG,
            burst=DemoBurst(name="first", kind="mix"),
        ),
        scene(
            (
                "**The ringed dots are the pause.** The prompts took a step of {first_longest}, and {first_who_paused} waited for it.",
                "**The ringed bar is their prefill,** a step of {first_longest}.",
                "**A bar in Tokens per step** is as wide as its step took.",
            ),
            rings=(("gap", "first"), ("step", "first")),
        ),
        reading(
            "**The prefill budget goes down to [[{budget}]]:** no step computes more than {budget} prompt tokens.",
            knobs={"prefill_max_tokens": 64},
            rings=("budget",),
        ),
        reading(
            "**The same {size} prompts arrive again.** Now a step computes {budget} of their tokens at most.",
            burst=DemoBurst(name="second", kind="mix"),
        ),
        scene(
            (
                "**The median pause is now {pause_falls};** the longest is {second_worst}.",
                "**The median pause grew:** {pause_rises}.",
                "**The median pause shows no clear difference here:** {pause_same}.",
            ),
            "Between two chunks of prefill, every story gets its next token.",
            rings=(("gap", "second"),),
        ),
        scene(
            (
                "**With budget [[{budget}]] the median pause is {pause_falls}.**",
                "**With budget [[{budget}]] the median pause is longer:** {pause_rises}.",
                "**With budget [[{budget}]] pauses show no clear difference:** {pause_same}.",
                "**With budget [[{budget}]] no step computes more than {budget} prompt tokens.**",
            ),
            (
                "The price: first tokens come after {first_token_rises}.",
                "The price: the last first tokens come after {last_token_rises}.",
                "First tokens come after {first_token_falls}.",
                "First tokens show no clear difference: {first_token_same}.",
            ),
        ),
    ),
    after="Try it yourself: move Prefill budget, press Burst.",
)

PREFIX = Demo(
    name="prefix",
    title="Prefix cache",
    shows="many questions about one document",
    knobs={"prefill_max_tokens": None, **NO_SHARING},
    scenes=(
        _READING,
        reading(
            "**{size} questions about one document arrive.** The prefix cache is [[off]].",
            burst=DemoBurst(name="first", kind="shared_head"),
        ),
        scene(
            (
                "**{first_computed} prompt tokens were computed,** the document {first_prompts} times over.",
                "**Each prompt is computed in full,** the document again for each question.",
            ),
            "First tokens came after {first_first_token}.",
            rings=(("step", "first"),),
        ),
        reading(
            "**Prefix cache and same-step sharing go [[on]]:** what prompts share is computed once.",
            knobs={"prefix_cache": True, "same_step_sharing": True},
            rings=("prefix-cache",),
        ),
        reading(
            "**The same {size} questions arrive again,** with nothing cached yet.",
            burst=DemoBurst(name="second", kind="shared_head"),
        ),
        scene(
            (
                "**{second_saved_percent} % of the prompt tokens were shared.**",
                "**Blocks that several requests share** are outlined in the map of KV blocks.",
            ),
            (
                "First tokens came after {first_token_falls}.",
                "First tokens took longer: {first_token_rises}.",
                "First tokens show no clear difference: {first_token_same}.",
            ),
            rings=("rp-blockmap",),
        ),
    ),
    after="Try it yourself: switch Prefix cache, press Burst with shared head.",
)

BATCH = Demo(
    name="batch",
    title="Batch size",
    shows="more answers at once, in larger steps",
    knobs={"max_batch_size": 6, "prefill_max_tokens": None},
    scenes=(
        _READING,
        reading(
            "**{size} prompts arrive, and a step has room for [[6]] answers.** The others wait in the queue.",
            burst=DemoBurst(name="first", kind="unique"),
        ),
        scene(
            ("**{first_waited_for_batch} prompts waited for a place.**", "**The queue** is the dotted line in Steps."),
            "The last ones began after {first_last_token}.",
            rings=("rp-steps",),
        ),
        reading(
            "**Max batch goes up to [[32]]:** all of them fit into one step.",
            knobs={"max_batch_size": 32},
            rings=("max-batch",),
        ),
        _again(DemoBurst(name="second", kind="unique")),
        scene(
            (
                "**The last ones now begin after {last_token_falls}.**",
                "**The last ones now begin later:** after {last_token_rises}.",
                "**The last ones begin with no clear difference:** after {last_token_same}.",
                "**With max batch [[32]] a step has room for all of them.**",
            ),
            (
                "The price: a token takes {gap_rises}.",
                "A token takes {gap_falls}.",
                "The time per token shows no clear difference: {gap_same}.",
            ),
        ),
    ),
    after="Try it yourself: move Max batch, press Burst.",
)

# Prompts that share nothing, so that each holds blocks of its own.
_FILLING = DemoBurst(name="", kind="unique", size=40, answer=48, mix=PromptMix(repeats=(12,)))

PRESSURE = Demo(
    name="pressure",
    title="KV pressure",
    shows="memory runs out: some requests are preempted",
    knobs={"max_batch_size": 64, "prefill_max_tokens": None, **NO_SHARING},
    scenes=(
        _READING,
        reading(
            "**{size} prompts arrive, and [[64]] may run at once.** Each answer needs more blocks as it grows.",
            burst=replace(_FILLING, name="first"),
            rings=("rp-blockmap",),
        ),
        scene(
            (
                "**Memory ran out: {first_preempted} answers were preempted** and computed again later (the diamonds in Steps).",
                "**{first_waited_for_blocks} prompts waited for blocks** until others had ended.",
                "**A full map of KV blocks** makes new prompts wait, or preempts running answers.",
            ),
            rings=("rp-steps",),
        ),
        reading(
            "**Max batch goes down to [[{half}]]:** fewer answers hold memory at once.",
            knobs={"max_batch_size": 24},
            rings=("max-batch",),
        ),
        _again(_FILLING),
        scene(
            (
                "**{second_preempted} answers preempted,** against {first_preempted} with max batch [[64]].",
                "**{second_preempted} answers preempted** this time.",
                "**{second_none_preempted} answers preempted,** against {first_preempted} with max batch [[64]].",
                "**With max batch [[{half}]] fewer answers hold memory at once.**",
            ),
            (
                "{second_waited_for_batch} prompts waited for a place in the batch instead.",
                "{second_waited_for_blocks} prompts waited for blocks.",
            ),
        ),
    ),
    after="Try it yourself: set Max batch to 64, Burst size to 64, press Burst.",
    fills_pool=True,
)

SWAP = Demo(
    name="swap",
    title="Swap",
    shows="preempted requests wait in the host's memory",
    knobs={**PRESSURE.knobs, "preemption_mode": "recompute"},
    scenes=(
        _READING,
        reading(
            "**{size} prompts arrive, and memory is too small for their answers.** Some will be preempted.",
            burst=replace(_FILLING, name="first"),
            rings=("rp-blockmap",),
        ),
        scene(
            (
                "**{first_preempted} answers were preempted:** their blocks went to others, and {first_recomputed} tokens were computed again.",
                "**A preempted answer loses its blocks.** All of its tokens are computed again when it goes on.",
            ),
            rings=("rp-steps",),
        ),
        reading(
            "**Preemption goes to [[swap]]:** lost blocks are copied to the host's memory first.",
            knobs={"preemption_mode": "swap"},
            rings=("rp-more-knobs",),
        ),
        _again(_FILLING),
        scene(
            (
                "**{second_swapped} blocks waited in the host's memory** and were copied back.",
                "**With [[swap]] blocks wait in the host's memory** and are copied back.",
            ),
            (
                "With [[recompute]] it was {first_recomputed} tokens that were computed again.",
                "Click a slow token after a diamond in Steps to see what its preemption cost.",
            ),
        ),
    ),
    after="Try it yourself: open More settings, choose a preemption, press Burst with size 64.",
    fills_pool=True,
)

APPEND = Demo(
    name="append",
    title="Batched append",
    shows="one memory write per layer, not one per request",
    knobs={"batched_append": False, "max_batch_size": 64, "prefill_max_tokens": None},
    scenes=(
        scene(
            "**{size} short prompts arrive.** Each request writes its keys and values by itself, layer by layer.",
            SLOW_MOTION,
            burst=DemoBurst(name="first", kind="unique", size=48, answer=96),
        ),
        scene(
            (
                "**Half of their tokens took longer than {first_gap}.**",
                "**A bar in Tokens per step** is as wide as its step took.",
            ),
            rings=("rp-tokens",),
        ),
        scene(
            "**Batched append goes [[on]]:** one write per layer for all requests of the step.",
            knobs={"batched_append": True},
            rings=("batched-append",),
        ),
        _again(DemoBurst(name="second", kind="unique", size=48, answer=96), stories=False),
        scene(
            (
                "**A token now takes {gap_falls}.** The gain grows with the number of requests in a step.",
                "**A token now takes longer:** {gap_rises}.",
                "**On this machine the time per token shows no clear difference:** {gap_same}.",
                "**Batched append writes once per layer** for all requests of a step.",
            )
        ),
    ),
    after="Try it yourself: switch Batched append, press Burst with size 64.",
    absent_simulated="it changes nothing: the cost model always counts one write per layer",
)

POLICY = Demo(
    name="policy",
    title="Shortest first",
    shows="the first in line, or the shortest prompt",
    knobs={
        "scheduling_policy": "fcfs",
        "max_overtakes": 64,
        "max_batch_size": 6,
        "prefill_max_tokens": None,
        **NO_SHARING,
    },
    scenes=(
        _READING,
        reading(
            "**{size} prompts arrive, and a step has room for [[6]] answers.**",
            _LONG,
            "First come, first served.",
            burst=DemoBurst(name="first", kind="mix", answer=8),
        ),
        scene(
            (
                "**{first_waited_for_batch} prompts waited for a place,** short ones behind long ones.",
                "**The queue** is the dotted line in Steps: short prompts wait behind long ones.",
            ),
            "Half of them had their first token after {first_first_token}.",
            rings=("rp-steps",),
        ),
        reading(
            "**The policy is now [[shortest]]:** of the prompts that wait, the shortest is next.",
            "A prompt that 64 others have overtaken is next all the same.",
            knobs={"scheduling_policy": "shortest"},
            rings=("rp-more-knobs",),
        ),
        _again(DemoBurst(name="second", kind="mix", answer=8)),
        scene(
            (
                "**Half of them now have their first token after {first_token_falls}.**",
                "**Half of them now wait longer for their first token:** {first_token_rises}.",
                "**The median first token shows no clear difference here:** {first_token_same}.",
                "**With shortest first, long prompts wait for short ones.**",
            ),
            (
                "The price: the last ones, which are long, wait for {last_token_rises}.",
                "The last ones wait for {last_token_falls}.",
                "The last ones, which are long, show no clear difference: {last_token_same}.",
            ),
        ),
    ),
    after="Try it yourself: open More settings, choose a policy, press Burst with the mix.",
)

INTERVAL = Demo(
    name="interval",
    title="Prefill interval",
    shows="decode steps between those with prompts",
    knobs={"prefill_interval": 0, "prefill_max_tokens": 128, "max_batch_size": 32, **NO_SHARING},
    watched_s=2.0,
    scenes=(
        _READING,
        reading(
            "**{size} prompts arrive.** Step after step computes [[128]] of their tokens, and readers wait for each.",
            burst=DemoBurst(name="first", kind="unique", answer=16, mix=PromptMix(repeats=(4,))),
        ),
        scene(
            (
                "**Until all had their first tokens, a reader usually waited {first_reader} for a token:** every step computed prompts.",
                "**A dark bar in Tokens per step** computes prompts: they follow each other without a break.",
            ),
            rings=(("step", "first"),),
        ),
        reading(
            "**Prefill interval goes to [[4]]:** after a step with prompts, four steps only decode.",
            knobs={"prefill_interval": 4},
            rings=("rp-more-knobs",),
        ),
        _again(DemoBurst(name="second", kind="unique", answer=16, mix=PromptMix(repeats=(4,)))),
        scene(
            (
                "**A reader now usually waits {reader_falls} for a token.**",
                "**A reader now usually waits longer:** {reader_rises}.",
                "**A reader's usual wait shows no clear difference here:** {reader_same}.",
                "**With an interval of [[4]], four of five steps compute no prompts.**",
            ),
            (
                "The price: first tokens come after {first_token_rises}.",
                "First tokens come after {first_token_falls}.",
                "First tokens show no clear difference: {first_token_same}.",
            ),
            rings=("rp-tokens",),
        ),
    ),
    after="Try it yourself: open More settings, move Prefill interval, press Burst.",
)

CLIFF = Demo(
    name="cliff",
    title="KV cliff",
    shows="where more clients no longer fit into memory",
    knobs={"max_batch_size": 256, "prefill_max_tokens": None, "step_max_tokens": None, **NO_SHARING},
    scenes=(
        reading(
            "**32 clients send prompts of {client_prompt} tokens.** Each sends its next one when it has its answer.",
            clients=DemoClients(name="few", count=32),
        ),
        reading(
            (
                "**First tokens come after {few_first_token}.** {few_kv} % of the KV blocks are in use.",
                "**The map of KV blocks** shows their memory: there is room for more.",
            ),
            rings=("rp-blockmap",),
        ),
        reading(
            "**Now there are [[128]] clients.** The KV blocks have room for the requests of {client_fit}.",
            clients=DemoClients(name="many", count=128),
            rings=("rp-blockmap",),
        ),
        reading(
            (
                "**{many_kv} % of the KV blocks are in use,** and {many_waiting} prompts wait for their first tokens.",
                "**A prompt that finds no free blocks waits** until answers have ended.",
            ),
            "First tokens now come after {many_first_token}.",
            settles=True,
            rings=("rp-kvtime",),
        ),
        reading(
            (
                "**First tokens came after {many_first_token},** with 32 clients after {few_first_token}.",
                "**Beyond the cliff, prompts wait** for the answers of others.",
            ),
            (
                "Published, measured with {published_by}: {published_many} and {published_few}.",
                "Published, measured with {published_by}: {published_many}.",
            ),
            rings=("rp-ttft",),
        ),
    ),
    after="Try it yourself: play a file of long prompts (Your own traffic), and watch KV in use.",
)

# The page shows the first six of those that an engine can have and the others on request, or all if they are seven.
DEMOS = {
    demo.name: demo
    for demo in (BUDGET, PREFIX, BATCH, PRESSURE, CLIFF, SPECULATION, FAIR, POLICY, INTERVAL, PINNED, SWAP, APPEND)
}
