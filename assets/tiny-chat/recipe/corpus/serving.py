"""Questions and answers about LLM serving, composed from the topics."""

import random
from dataclasses import dataclass

from . import phrasing
from .contrasts import CONTRASTS
from .controls import CONTROLS
from .generation import GENERATION
from .hardware import HARDWARE
from .memory import MEMORY
from .metrics import METRICS
from .questions import QUESTIONS
from .scheduling import SCHEDULING
from .topic import Topic

TOPICS: tuple[Topic, ...] = METRICS + MEMORY + SCHEDULING + GENERATION + HARDWARE + CONTROLS
BY_KEY: dict[str, Topic] = {topic.key: topic for topic in TOPICS}
_IDENTITY = next(question for question in QUESTIONS if "who are you" in question[0])  # what everybody asks first
_KINDS = ("what",) * 9 + ("how",) * 3 + ("why",) * 3 + ("example", "simple", "short", "long", "list")


@dataclass(frozen=True)
class Turn:
    """A question, its answer, the words of which one must occur in an answer on topic, and its topic if there is one."""

    question: str
    answer: str
    keywords: tuple[str, ...]
    topic: Topic | None = None


def answer(rng: random.Random, topic: Topic, kind: str) -> str:
    """Compose an answer of the given kind: what, how, why, example, simple, short, long or list."""
    define = rng.choice(topic.define)
    details = list(topic.details)
    if kind == "short":
        return define
    if kind == "why":
        return topic.why[0] + (" " + rng.choice(details) if rng.random() < 0.4 else "")
    if kind in ("example", "simple"):
        return {"example": topic.example, "simple": topic.simple}[kind][0]
    if kind == "list":
        return define + "\n- " + "\n- ".join([*details, topic.why[0]])
    if kind == "long":
        return (
            f"{define} {' '.join(details)}\n\n{topic.why[0]} {topic.example[0]}\n\nIn simple words: {topic.simple[0]}"
        )
    chosen = details if kind == "how" else details[: rng.randint(0, min(2, len(details)))]
    extra = [topic.example[0]] if kind == "what" and rng.random() < 0.2 else []
    return " ".join([define, *chosen, *extra])


def topic_turn(rng: random.Random, held_out: bool = False, kind: str | None = None) -> Turn:
    """Ask about one topic in one of many phrasings; `kind` fixes what kind of answer is given."""
    topic = rng.choice(TOPICS)
    asked = kind or rng.choice(_KINDS)
    form = rng.choice((phrasing.HELD_OUT_FORMS if held_out else phrasing.FORMS)[asked])
    question = phrasing.wrap(rng, form.format(x=rng.choice(topic.names)), held_out)
    return Turn(phrasing.sloppy(rng, question), answer(rng, topic, asked), topic.keywords, topic)


def contrast_turn(rng: random.Random, held_out: bool = False) -> Turn:
    """Ask for the difference between two topics."""
    if rng.random() < 0.75:
        first_key, second_key, point = rng.choice(CONTRASTS)
        first, second = BY_KEY[first_key], BY_KEY[second_key]
        if rng.random() < 0.5:
            first, second = second, first
        text = f"{point} {first.define[0]} {second.define[0]}"
    else:
        first, second = rng.sample(METRICS + MEMORY + SCHEDULING + GENERATION + HARDWARE, 2)
        text = f"They are two different things. {first.define[0]} {second.define[0]}"
    form = rng.choice(phrasing.HELD_OUT_CONTRAST_FORMS if held_out else phrasing.CONTRAST_FORMS)
    question = phrasing.wrap(rng, form.format(x=rng.choice(first.names), y=rng.choice(second.names)), held_out)
    return Turn(phrasing.sloppy(rng, question), text, first.keywords + second.keywords, first)


def special_turn(rng: random.Random, held_out: bool = False) -> Turn:
    """Ask one of the questions that have an answer of their own; every fifth phrasing is held out."""
    asks, answers, keywords = rng.choice([q for q in QUESTIONS if len(q[0]) > 4] if held_out else QUESTIONS)
    if not held_out and rng.random() < 0.06:
        asks, answers, keywords = _IDENTITY
    held = asks[4::5]
    ask = rng.choice(held if held_out else tuple(a for a in asks if a not in held))
    return Turn(phrasing.sloppy(rng, phrasing.wrap(rng, ask, held_out)), rng.choice(answers), keywords)


def glossary_turn(rng: random.Random) -> Turn:
    """Ask for several serving words at once; the answer is long."""
    chosen = rng.sample(METRICS + MEMORY + SCHEDULING + GENERATION + HARDWARE, rng.randint(3, 6))
    if rng.random() < 0.5:
        ask = rng.choice(
            (
                "list {n} serving words",
                "give me a glossary with {n} words",
                "explain {n} serving terms",
                "name {n} words of LLM serving and explain them",
                "teach me {n} serving terms",
            )
        )
        question = ask.format(n=len(chosen))
    else:
        ask = rng.choice(("explain {x}", "what are {x}", "tell me about {x}", "define {x}", "write a text about {x}"))
        names = [rng.choice(topic.names) for topic in chosen]
        question = ask.format(x=", ".join(names[:-1]) + " and " + names[-1])
    text = "\n".join(f"{i}. {topic.define[0]}" for i, topic in enumerate(chosen, 1))
    return Turn(phrasing.wrap(rng, question), text, chosen[0].keywords)


def serving_turn(rng: random.Random, held_out: bool = False) -> Turn:
    """Return any question about serving."""
    draw = rng.random()
    if draw < 0.66:
        return topic_turn(rng, held_out)
    if draw < 0.78:
        return contrast_turn(rng, held_out)
    if draw < 0.97 or held_out:
        return special_turn(rng, held_out)
    return glossary_turn(rng)
