"""Lists, counting and echoes."""

import random

from . import words

# In a fixed order: a model that always takes the likeliest token would name one random item again and again.
_KINDS = {
    "animals": "cat dog horse lion tiger bear wolf fox owl frog".split(),
    "birds": "owl eagle robin swan crow duck goose heron falcon sparrow".split(),
    "colours": "red blue green yellow orange purple brown black white pink".split(),
    "colors": "red blue green yellow orange purple brown black white pink".split(),
    "fruits": "apple banana cherry grape lemon mango melon orange peach pear".split(),
    "vegetables": "carrot potato onion tomato cucumber spinach broccoli pepper pea bean".split(),
    "jobs": "baker teacher nurse farmer pilot carpenter cook painter driver gardener".split(),
    "things": "table chair lamp book cup door key clock pencil bottle".split(),
    "names": "Anna Ben Clara David Emma Felix Greta Hugo Iris Jonas".split(),
}
_FIXED = (
    (("the days of the week", "all weekdays", "the seven days of the week", "all days of the week"), words.DAYS),
    (("the months of the year", "all months", "the twelve months"), words.MONTHS),
    (("the planets", "the planets of the solar system", "all planets"), words.PLANETS),
    (("the seasons", "the four seasons"), ("spring", "summer", "autumn", "winter")),
    (("the vowels", "all vowels"), tuple("aeiou")),
    (("the letters of the alphabet", "the alphabet"), tuple("abcdefghijklmnopqrstuvwxyz")),
)


def _some(rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(tuple(_KINDS))
    count = rng.randint(2, 10)
    shown = rng.choice((str(count), words.NUMBERS[count]))
    ask = rng.choice(
        (
            "List {c} {k}",
            "Name {c} {k}",
            "Give me {c} {k}",
            "Can you list {c} {k}?",
            "Tell me {c} {k}",
            "{c} {k} please",
            "Write down {c} {k}",
            "I need {c} {k}",
        )
    )
    return ask.format(c=shown, k=kind), "\n".join(f"{i}. {item}" for i, item in enumerate(_KINDS[kind][:count], 1))


def _fixed(rng: random.Random) -> tuple[str, str]:
    asks, items = rng.choice(_FIXED)
    verb = rng.choice(("List", "Name", "What are", "Tell me", "Write down", "Say", "Give me"))
    return f"{verb} {rng.choice(asks)}", ", ".join(items) + "."


def _count(rng: random.Random) -> tuple[str, str]:
    last = rng.randint(2, 20)
    if rng.random() < 0.25:
        ask = rng.choice(("Count down from {n}", "Count backwards from {n}", "Countdown from {n}"))
        return ask.format(n=last), ", ".join(str(i) for i in range(last, 0, -1)) + "."
    ask = rng.choice(
        ("Count to {n}", "Count from 1 to {n}", "Can you count to {n}?", "Count up to {n}", "Say the numbers to {n}")
    )
    return ask.format(n=last), ", ".join(str(i) for i in range(1, last + 1)) + "."


def _repeat(rng: random.Random) -> tuple[str, str]:
    text = " ".join(rng.choice((words.noun(rng), words.name(rng))) for _ in range(rng.randint(1, 4)))
    ask = rng.choice(
        ("Say {t}", "Repeat after me: {t}", "Repeat: {t}", "Say the words {t}", "Echo {t}", "Please say: {t}")
    )
    return ask.format(t=text), text + "."


def list_turn(rng: random.Random) -> tuple[str, str]:
    """Return a request for a list, a count or an echo, with its answer."""
    return rng.choice((_some, _some, _some, _count, _count, _fixed, _repeat))(rng)
