"""The demos in which the chats of the lanes are measured."""

from __future__ import annotations

from dataclasses import replace

from roseplay.play.demos.script import NO_SHARING, SLOW_MOTION, Demo, DemoBurst, DemoChats, reading, scene

# Questions whose answers the packaged models repeat when they are asked again. Two, as guesses are nearly free while few
# requests run.
_REPEATED = ("List the months of the year.", "Write the numbers from 1 to 10.")
_REPEATING = DemoChats(name="", prompts=_REPEATED, lanes=(1, 2), answer=44)

SPECULATION = Demo(
    name="speculation",
    title="Speculation",
    shows="text that repeats: several tokens per step",
    knobs={
        "speculative_tokens": 0,
        "lookup_ngram": 3,
        "max_batch_size": 32,
        "prefill_max_tokens": None,
        **NO_SHARING,  # so that both answers begin with a whole prompt
    },
    watched_s=4.0,
    scenes=(
        scene(
            "**Two people ask something twice. How many steps does the second answer take if [[7]] tokens are guessed at a time?**",
            answers={"chats_steps_same": "As many", "chats_steps_falls": "Fewer", "chats_steps_rises": "More"},
        ),
        scene(
            "**Two people ask a question.** A step draws one token of each answer.",
            SLOW_MOTION,
            chats=replace(_REPEATING, name="start"),
        ),
        scene(
            "**They ask the same again.** The answers now repeat text that is in the chat.",
            chats=replace(_REPEATING, name="before", turn="next"),
        ),
        scene(
            (
                "**The longest answer took {before_steps} steps, one for each token,** although its text stood in the chat.",
            ),
            rings=(("steps", "before"),),
        ),
        scene(
            "**Speculative tokens go to [[7]], and they ask again.** What followed the same words is a guess; a step checks up to seven.",
            knobs={"speculative_tokens": 7},
            chats=replace(_REPEATING, name="after", turn="again"),
            rings=("speculative",),
        ),
        scene(
            (
                "**The longest answer took {chats_steps_falls} steps:** only repeated text is guessed.",
                "**The longest answer took {chats_steps_falls} steps.**",
                "**The longest answer took more steps:** {chats_steps_rises}.",
                "**The steps show no clear difference:** {chats_steps_same}.",
            ),
            "The {chats_same} answers stay the same.",
            "The price: each step ends {chats_step_later}.",
            rings=("rp-pair", ("steps", "after"), ("steps", "before")),
        ),
    ),
    after="Try it yourself: open All controls and More settings, move Speculative tokens, and ask a question twice.",
)

_FLOOD = DemoBurst(name="first", kind="unique", size=30, answer=32, tenant="flood")

_QUIET = DemoChats(name="before", tenant="chats")

FAIR = Demo(
    name="fair",
    title="Fair tenants",
    shows="one tenant floods the queue, another one chats",
    knobs={
        "scheduling_policy": "fcfs",
        "max_overtakes": 64,
        "max_batch_size": 6,
        "prefill_max_tokens": None,
        **NO_SHARING,
    },
    watched_s=3.0,
    scenes=(
        reading(
            "**One tenant sends {size} prompts just before another one chats. With policy [[fair]], how long do the chats wait?**",
            answers={
                "chats_first_token_rises": "Longer",
                "chats_first_token_same": "As long",
                "chats_first_token_falls": "Not as long",
            },
        ),
        scene(
            "**One tenant sends {size} prompts, then the other chats.** First come, first served, [[6]] answers at a time.",
            SLOW_MOTION,
            burst=_FLOOD,
            chats=_QUIET,
        ),
        scene(
            (
                "**The last chat waited {before_first_token} for its first token,** behind the flood. Dotted lines in Steps are waiting.",
            ),
            rings=(("rows", "before"),),
        ),
        scene(
            "**The policy is now [[fair]], and the same arrives again.** The tenant that has been served fewest tokens is next.",
            knobs={"scheduling_policy": "fair"},
            burst=replace(_FLOOD, name="second"),
            chats=replace(_QUIET, name="after"),
            rings=("policy",),
        ),
        scene(
            (
                "**The last chat now has its first token after {chats_first_token_falls}.**",
                "**The last chat now waits longer for its first token:** {chats_first_token_rises}.",
                "**The last chat's wait shows no clear difference:** {chats_first_token_same}.",
            ),
            "The price: the flood's first tokens come {first_token_later}.",
            rings=("rp-pair", ("rows", "after"), ("rows", "before")),
        ),
    ),
    after="Try it yourself: open All controls and More settings, choose fair, and name a tenant under Sampling.",
)
