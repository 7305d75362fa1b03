"""Questions outside of what tiny-chat knows, and its polite ways of saying so."""

import random

from . import off_topic, words

_SERVING_NOUNS = ("token", "cache", "server", "scheduler")  # what these are is a question that tiny-chat can answer
_RANDOM_RANGES = (
    (0x4E00, 0x9FA5),
    (0x3041, 0x3096),
    (0xAC00, 0xD7A3),
    (0x0410, 0x044F),
    (0x0621, 0x064A),
    (0x0905, 0x0939),
    (0x03B1, 0x03C9),
    (0x1F600, 0x1F64F),
)


def _noun(rng: random.Random, held_out: bool) -> str:
    while (found := words.noun(rng, held_out)) in _SERVING_NOUNS:
        pass
    return found


def _off_topic(rng: random.Random, held_out: bool) -> tuple[str, str]:
    area = rng.choice(tuple(off_topic.OFF_TOPIC))
    template = rng.choice(off_topic.HELD_OUT_OFF_TOPIC if held_out else off_topic.OFF_TOPIC[area])
    first, second = _noun(rng, held_out), _noun(rng, held_out)
    place, other = (words.invented_word(rng).capitalize() for _ in range(2))
    if rng.random() < 0.3:
        place = place.lower()
    text = template.format(
        x=place,
        y=other,
        n=first,
        n2=second,
        ns=words.plural(first),
        p=words.name(rng, held_out),
        year=rng.randint(1000, 2050),
        num=rng.randint(2, 900),
        digit=rng.randint(0, 20),
        digit2=rng.randint(0, 20),
    )
    special = off_topic.SPECIAL_ANSWERS.get(area, ())
    return text, rng.choice(special if special and rng.random() < 0.6 else off_topic.UNKNOWN_ANSWERS)


def _foreign(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(off_topic.FOREIGN)
    low, high = rng.choice(_RANDOM_RANGES)
    return "".join(chr(rng.randint(low, high)) + (" " if rng.random() < 0.1 else "") for _ in range(rng.randint(2, 20)))


def _garbled(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.3:
        return " ".join(rng.choice(off_topic.SYMBOLS) for _ in range(rng.randint(1, 5)))
    if draw < 0.6:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789;,.-") for _ in range(rng.randint(3, 24)))
    if draw < 0.8:
        return " ".join(words.invented_word(rng) for _ in range(rng.randint(1, 6)))
    if draw < 0.88:
        return " ".join(rng.choice(words.TRAIN_NOUNS) for _ in range(rng.randint(3, 12)))
    if draw < 0.95:
        return " ".join([words.noun(rng)] * rng.choice((2, 5, 10, 30, 100, 300)))
    return str(rng.randint(0, 10 ** rng.randint(2, 12)))


def fallback_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """Return (a question outside of the model's world, a polite answer)."""
    draw = rng.random()
    if held_out or draw < 0.72:
        return _off_topic(rng, held_out)
    if draw < 0.86:
        return _foreign(rng), rng.choice(off_topic.FOREIGN_ANSWERS)
    return _garbled(rng), rng.choice(off_topic.GARBLED_ANSWERS)
