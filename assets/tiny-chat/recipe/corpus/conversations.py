"""Whole conversations: single questions, several turns, system prompts, long shared heads and pasted texts."""

import random
from collections.abc import Iterator

from . import fallback, lists, phrasing, prompts, serving, smalltalk, stories, words
from .serving import Turn
from .topic import Topic

Message = dict[str, str]
Conversation = list[Message]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _exchange(question: str, answer: str) -> Conversation:
    return [_message("user", question), _message("assistant", answer)]


def smalltalk_turn(rng: random.Random) -> tuple[str, str]:
    """Return a line of small talk and a reply."""
    asks, answers = rng.choice(smalltalk.SMALLTALK)
    if rng.random() < 0.15:
        asks, answers = smalltalk.SMALLTALK[0]
    who = words.name(rng)
    ask = rng.choice(asks).format(p=who)
    if "{p}" in answers[0]:
        return ask[:1].upper() + ask[1:], rng.choice(answers).format(p=who)
    if asks is smalltalk.GREETINGS and rng.random() < 0.3:
        ask = rng.choice(("{a} {i}", "{a} #{i}", "{a}, request {i}", "[{i}] {a}", "Request {i}: {a}")).format(
            a=ask, i=rng.randint(0, 999)
        )
    elif rng.random() < 0.3:
        ask += rng.choice(("!", ".", "?", "...", " :)"))
    return phrasing.sloppy(rng, ask[:1].upper() + ask[1:] if rng.random() < 0.6 else ask), rng.choice(answers)


def _other_turn(rng: random.Random) -> tuple[str, str]:
    draw = rng.random()
    if draw < 0.18:
        return smalltalk_turn(rng)
    if draw < 0.46:
        ask, text = stories.story_turn(rng)
    elif draw < 0.54:
        ask, text = stories.poem_turn(rng)
    elif draw < 0.70:
        ask, text = lists.list_turn(rng)
    else:
        ask, text = fallback.fallback_turn(rng)
        if ask.isascii():
            ask = phrasing.sloppy(rng, phrasing.wrap(rng, ask))
        return ask, text
    return (phrasing.wrap(rng, ask) if rng.random() < 0.4 else ask), text


def single(rng: random.Random) -> Conversation:
    """One question and its answer, now and then below a system prompt that may ask for short or long answers."""
    draw = rng.random()
    if draw < 0.06:
        kind = rng.choice(("short", "long"))
        turn = serving.topic_turn(rng, kind="what")
        assert turn.topic is not None
        system = rng.choice(prompts.SYSTEMS_SHORT if kind == "short" else prompts.SYSTEMS_LONG)
        return [_message("system", system), *_exchange(turn.question, serving.answer(rng, turn.topic, kind))]
    if draw < 0.58:
        turn = serving.serving_turn(rng)
        body = _exchange(turn.question, turn.answer)
    else:
        body = _exchange(*_other_turn(rng))
    return [_message("system", rng.choice(prompts.SYSTEMS)), *body] if rng.random() < 0.25 else body


def _follow_ups(rng: random.Random, topic: Topic, count: int) -> Conversation:
    """`count` different questions that make sense only after the topic has been named."""
    kinds = (
        (prompts.FOLLOW_WHY, topic.why[0]),
        (prompts.FOLLOW_EXAMPLE, topic.example[0]),
        (prompts.FOLLOW_MORE, " ".join(topic.details)),
        (prompts.FOLLOW_SIMPLE, topic.simple[0]),
        (prompts.FOLLOW_SHORT, topic.define[0]),
    )
    body: Conversation = []
    for asks, text in rng.sample(kinds, count):
        ask = rng.choice(asks)
        body += _exchange(ask[:1].upper() + ask[1:] if rng.random() < 0.4 else ask, text)
    return body


def _round(rng: random.Random) -> Conversation:
    """A few turns that belong together."""
    draw = rng.random()
    if draw < 0.5:
        turn = serving.topic_turn(rng)
        assert turn.topic is not None
        return _exchange(turn.question, turn.answer) + _follow_ups(rng, turn.topic, rng.randint(1, 3))
    if draw < 0.65:
        body = _exchange(*stories.story_turn(rng))
        return body + (_exchange(rng.choice(prompts.ANOTHER), stories.story_turn(rng)[1]) if rng.random() < 0.4 else [])
    if draw < 0.75:
        turn = serving.serving_turn(rng)
        return _exchange(turn.question, turn.answer)
    if draw < 0.82:
        ask, text = fallback.fallback_turn(rng)
        return _exchange(ask, text) + _exchange(
            rng.choice(prompts.FOLLOW_WHY), "Because I am a very small model, and all I have read is about LLM serving."
        )
    return _exchange(*_other_turn(rng))


def dialogue(rng: random.Random, characters: int) -> Conversation:
    """Several turns, at least until the texts have that many characters in all."""
    body: Conversation = [_message("system", rng.choice(prompts.SYSTEMS))] if rng.random() < 0.3 else []
    if rng.random() < 0.3:
        body += _exchange(*smalltalk_turn(rng))
    while True:
        body += _round(rng)
        if sum(len(m["content"]) for m in body) >= characters:
            break
    if rng.random() < 0.3:
        body += _exchange(
            rng.choice(("thanks", "thank you", "Thanks!", "great, thanks")), rng.choice(smalltalk.SMALLTALK[2][1])
        )
    return body


def _head(rng: random.Random, characters: int) -> str:
    """A long text that many requests could share: rules, facts, or sentences about serving."""
    parts: list[str] = []
    technical = rng.random() < 0.4
    while sum(map(len, parts)) < characters:
        if technical and rng.random() < 0.6:
            topic = rng.choice(serving.TOPICS)
            parts.append(rng.choice(topic.define + topic.details))
        else:
            parts.append(
                rng.choice(prompts.RULES).format(
                    p=words.name(rng),
                    q=words.name(rng),
                    n=words.noun(rng),
                    m=words.noun(rng),
                    ns=words.plural(words.noun(rng)),
                    ms=words.plural(words.noun(rng)),
                    place=rng.choice(words.PLACES),
                    i=rng.randint(1, 99),
                    j=rng.randint(1, 99),
                )
            )
    return " ".join(parts) if rng.random() < 0.7 else "\n".join(f"- {part}" for part in parts)


def headed(rng: random.Random, characters: int, turn: Turn | None = None) -> Conversation:
    """A question below a long head, which stands in the system prompt or before the question."""
    head = _head(rng, characters)
    if turn or rng.random() < 0.75:
        turn = turn or serving.serving_turn(rng)
        question, text = turn.question, turn.answer
    else:
        question, text = _other_turn(rng)
    if rng.random() < 0.5:
        return [_message("system", f"{rng.choice(prompts.SYSTEMS)} {head}"), *_exchange(question, text)]
    joint = rng.choice(("\n\nQuestion: ", "\n\n", "\n", " ", "\n\nUser: ", "\n---\n", "\n\nNow answer: "))
    return _exchange(head + joint + question, text)


def pasted(rng: random.Random, characters: int) -> Conversation:
    """A pasted text to sum up: about one serving topic (answered) or about anything else (declined)."""
    if rng.random() < 0.5:
        topic = rng.choice(serving.TOPICS)
        text = serving.answer(rng, topic, "long").split("\n\nIn simple")[0].replace("\n\n", " ")
        return _exchange(rng.choice(prompts.PASTE).format(t=text), topic.define[0])
    parts: list[str] = []
    while sum(map(len, parts)) < characters:
        parts.append(stories.story_turn(rng)[1] if rng.random() < 0.5 else _head(rng, 300))
    return _exchange(rng.choice(prompts.PASTE).format(t="\n\n".join(parts)), rng.choice(prompts.PASTE_ANSWERS))


def plain_text(rng: random.Random) -> str:
    """Text without a chat around it, for prompts that are given raw."""
    if rng.random() < 0.5:
        return stories.story_turn(rng)[1]
    return serving.answer(rng, rng.choice(serving.TOPICS), rng.choice(("what", "how", "long")))


def exercise(rng: random.Random) -> Conversation:
    """A request that must be followed to the letter: use this noun, count to that number, repeat these words."""
    ask, text = rng.choice((lists.list_turn, stories.story_turn, stories.poem_turn))(rng)
    return _exchange(phrasing.wrap(rng, ask) if rng.random() < 0.3 else ask, text)


def conversations(seed: int, count: int, exercises: float = 0.0) -> Iterator[Conversation | str]:
    """Yield `count` training samples: conversations, plain texts, and a share of exercises on top."""
    rng = random.Random(seed)
    for _ in range(count):
        draw = rng.random()
        if exercises and rng.random() < exercises:
            yield exercise(rng)
        elif draw < 0.74:
            yield single(rng)
        elif draw < 0.88:
            yield dialogue(rng, rng.choice((300, 600, 1000)))
        elif draw < 0.94:
            yield headed(rng, rng.choice((200, 500, 1000, 2000)))
        elif draw < 0.955:
            yield pasted(rng, rng.choice((200, 600, 1500)))
        elif draw < 0.965:
            yield dialogue(rng, rng.choice((3000, 5000, 7000)))
        elif draw < 0.97:
            yield headed(rng, rng.choice((4000, 6000)))
        else:
            yield plain_text(rng)
