"""The demos in which the chats of the lanes are measured."""

from __future__ import annotations

from dataclasses import replace

from roseplay.play.demos.script import NO_SHARING, SLOW_MOTION, Demo, DemoBurst, DemoChats, reading, scene
from roseplay.traffic.prompts import PromptMix

# Prompts that the embedded model answers well.
_QUESTIONS = ("What is paged attention?", "What is TTFT?", "What does the prefix cache do?", "Why did my ITL spike?")

# Two, as guesses are nearly free while few requests run.
_REPEATING = DemoChats(name="", prompts=_QUESTIONS[:2], lanes=(1, 2))

SPECULATION = Demo(
    name="speculation",
    title="Speculation",
    shows="text that repeats: several tokens per step",
    knobs={
        "speculative_tokens": 0,
        "lookup_ngram": 3,
        "max_batch_size": 32,
        "prefill_max_tokens": None,
        "prefix_cache": True,
    },
    watched_s=4.0,
    scenes=(
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
                "**Each token took a step of its own,** although the text stood in the chat.",
            ),
            rings=("rp-steps",),
        ),
        scene(
            "**Speculative tokens go to [[7]].** What followed the same words earlier is a guess, and one step checks up to seven.",
            knobs={"speculative_tokens": 7},
            rings=("rp-more-knobs",),
        ),
        scene(
            "**The same questions again.** Tokens that were guessed right are stacked on their step, in Steps.",
            chats=replace(_REPEATING, name="after", turn="again"),
            rings=("rp-steps",),
        ),
        scene(
            (
                "**{after_accepted} % of the guesses were right,** and the {chats_same} answers are the same as before, word for word.",
                "**{after_accepted} % of the guesses were right.** One counts only if the model draws the same token.",
                "**A guess counts only if the model draws the same token,** so that answers stay the same.",
            ),
            "The price: a step takes {chats_step_rises}.",
            rings=("rp-tokens",),
        ),
        scene(
            (
                "**{after_per_step} tokens per step:** the longest answer took {after_steps} steps, not {before_steps}.",
                "**With [[7]] speculative tokens, a step draws several tokens if guesses are right.**",
            ),
            (
                "A token takes {chats_token_falls}.",
                "A token takes longer: {chats_token_rises}.",
                "A token shows no clear difference: {chats_token_same}.",
            ),
            rings=("rp-steps",),
        ),
    ),
    after="Try it yourself: open More settings, move Speculative tokens, and ask a question twice.",
)

_FLOOD = DemoBurst(name="", kind="unique", size=30, answer=32, tenant="flood")

_QUIET = DemoChats(name="", prompts=_QUESTIONS, tenant="chats")

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
            "**Two tenants share this engine.** One has the four chats; the other is about to send a flood.",
            SLOW_MOTION,
        ),
        scene(
            "**One tenant sends {size} prompts, then the other asks in its chats.** A step has room for [[6]] answers: first come, first served.",
            burst=replace(_FLOOD, name="first"),
            chats=replace(_QUIET, name="before"),
            rings=("rp-steps",),
        ),
        scene(
            (
                "**The chats waited {before_first_token} for their first tokens,** behind the flood. Dots in Steps are waiting time.",
                "**The chats stand in line behind the flood.** Dots in Steps are waiting time.",
            ),
            rings=("rp-steps",),
        ),
        scene(
            "**The policy is now [[fair]]:** the tenant that has been served fewest tokens is next.",
            knobs={"scheduling_policy": "fair"},
            rings=("rp-more-knobs",),
        ),
        scene(
            "**The same again:** the flood of {size} first, then the chats.",
            burst=replace(_FLOOD, name="second"),
            chats=replace(_QUIET, name="after"),
            rings=("rp-steps",),
        ),
        scene(
            (
                "**The chats now have their first tokens after {chats_first_token_falls}.**",
                "**The chats now wait longer for their first tokens:** {chats_first_token_rises}.",
                "**The chats' first tokens show no clear difference here:** {chats_first_token_same}.",
                "**With fair, the next free place is for the tenant with fewer tokens.**",
            ),
            (
                "The price: half of the flood waits for {first_token_rises}.",
                "The flood's median first token comes after {first_token_falls}.",
                "The flood's first tokens show no clear difference: {first_token_same}.",
            ),
            rings=("rp-steps",),
        ),
    ),
    after="Try it yourself: open More settings, choose fair, and name a tenant under Sampling.",
)

_SYSTEM_TOKENS, _PINNED_BLOCKS = (256, 16)

_DOCUMENTS = DemoBurst(name="", kind="unique", size=8, answer=16, mix=PromptMix(repeats=(120,)), cleared=False)

_TWO = DemoChats(name="", prompts=_QUESTIONS[:2], lanes=(1, 2), answer=96, system_tokens=_SYSTEM_TOKENS, cleared=True)

_THIRD = DemoChats(name="", prompts=_QUESTIONS[2:3], lanes=(3,), answer=96, system_tokens=_SYSTEM_TOKENS)

PINNED = Demo(
    name="pinned",
    title="Pinned prefix",
    shows="documents push a system prompt out of the cache",
    knobs={
        "eviction_policy": "lru",
        "pinned_blocks": 0,
        "prefix_cache": True,
        "same_step_sharing": True,
        "max_batch_size": 4,
        "prefill_max_tokens": 512,
    },
    fills_pool=True,
    scenes=(
        scene(
            "**Two people ask with the same long system prompt.** It is computed once, and its blocks stay cached.",
            SLOW_MOTION,
            chats=replace(_TWO, name="start"),
            rings=("rp-blockmap",),
        ),
        scene(
            "**{size} long documents pass through.** They need more blocks than are free, so the least recently used are given up.",
            burst=replace(_DOCUMENTS, name="first"),
            rings=("rp-blockmap",),
        ),
        scene(
            "**A third person asks,** with the same system prompt.",
            chats=replace(_THIRD, name="before"),
            rings=("rp-lane-3",),
        ),
        scene(
            (
                "**{before_none_cached} of the {before_prompt} prompt tokens was still cached.** The documents had pushed the system prompt out.",
                "**{before_cached} of {before_prompt} prompt tokens were still cached,** as not all documents have passed.",
                "**What is least recently used is given up first,** a system prompt too.",
            ),
            rings=("rp-lane-3",),
        ),
        scene(
            "**Pinned prefix goes to [[16]] blocks:** when a second prompt begins like an earlier one, these stay. The map marks them.",
            knobs={"pinned_blocks": _PINNED_BLOCKS},
            chats=replace(_TWO, name="start_pinned"),
            rings=("rp-blockmap", "rp-more-knobs"),
        ),
        scene(
            "**The same {size} documents pass through.** The pinned blocks keep their places.",
            burst=replace(_DOCUMENTS, name="second"),
            rings=("rp-blockmap",),
        ),
        scene(
            "**A person asks with this system prompt again.**",
            chats=replace(_THIRD, name="after", lanes=(4,)),
            rings=("rp-lane-4",),
        ),
        scene(
            (
                "**{after_cached} of {after_prompt} prompt tokens were still cached,** so that {after_computed} were computed. Without pinning it was {before_computed}.",
                "**Pinned blocks stay cached,** whatever passes through.",
            ),
            rings=("rp-lane-4",),
        ),
    ),
    after="Try it yourself: open More settings, move Pinned prefix, and set a system prompt under Sampling.",
)
