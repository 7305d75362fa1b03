"""Stories, poems and haiku, made by a small grammar around a requested noun and name."""

import random

from . import words

ASKS = (
    "Tell me a story about {a}",
    "Write a story about {a}",
    "Write a short story about {a}",
    "Tell me a tale about {a}",
    "I want a story about {a}",
    "Can you tell me a story about {a}?",
    "Story about {a}, please",
    "A story about {a}",
    "Make up a story about {a}",
    "Give me a story with {a}",
    "Please write a little story about {a}",
    "Invent a tale about {a}",
    "Could you write a short tale about {a}?",
    "I would like to hear a story about {a}",
    "Tell me something about {a} in a land far away",
    "Once upon a time there was {a}. Go on.",
    "Continue: Once upon a time there was {a}",
    "Write a story with {a} in it",
    "bedtime story about {a}",
    "Write a bedtime story about {a} for my kid",
    "Write a paragraph about {a}",
    "story: {n}",
    "Tell a short story on the topic {n}",
    "Write about {a}",
    "Write a long story about {a}",
    "Tell me about the adventures of {a}",
)
ASKS_NAMED = (
    "Tell me a story about {a} named {p}",
    "Write a story about {a} called {p}",
    "Story about {p} the {n}",
    "Tell me about {p}, {a}",
    "Write a short story about {p} the {n}",
    "I want a tale about {a} whose name is {p}",
    "Make up a story in which {p} is {a}",
    "Can you write about {a} with the name {p}?",
)
ASKS_PAIR = (
    "Tell me a story about {a} and {b}",
    "Write a story with {a} and {b}",
    "A tale of {a} and {b}, please",
    "Make up a story about {a} who meets {b}",
    "Can you tell a story in which {a} meets {b}?",
    "story about {a} and {b}",
)
ASKS_ANY = (
    "Tell me a story",
    "Write a short story",
    "A story please",
    "Can you tell me a story?",
    "I'm bored, tell me something",
    "Tell me a bedtime story",
    "Write something nice",
    "Once upon a time",
    "Make up a story",
    "Write a paragraph of text",
)
HELD_OUT_ASKS = ("I'd love a tale of {a}", "Could I get a story featuring {a}?", "Spin a yarn about {a}")

OPENINGS = (
    "Once upon a time, in {place}, there lived {an_adj} {n} named {p}.",
    "In {place} there was once {an_adj} {n} called {p}.",
    "{p} was {an_adj} {n} who lived in {place}.",
    "Long ago, {an_adj} {n} named {p} came to {place}.",
    "There was once {an_adj} {n} in {place}. Its name was {p}.",
    "This is the story of {p}, {an_adj} {n} from {place}.",
)
PLOTS = (
    (
        "One day {p} found {other_a} in the grass.",
        "Nobody knew where the {o} had come from.",
        "{p} carried the {o} home and took good care of it.",
        "Some days later the {o} began to shine in the dark.",
        "From then on the {n} was never afraid of the night again.",
    ),
    (
        "{p} wanted nothing more than to see the sea.",
        "So one morning the {n} packed a little bag and set off.",
        "On the way {p} met {other_a}, and the two went on together.",
        "After seven days they stood at the shore and said nothing.",
        "The sea was even bigger than {p} had dreamed.",
    ),
    (
        "Every night {p} heard a strange sound from the roof.",
        "At last the {n} took a lamp and climbed up to look.",
        "There sat {other_a}, singing to the moon.",
        "{p} sat down and sang along, although neither of them knew the words.",
        "Since that night the roof is never silent, and nobody minds.",
    ),
    (
        "{p} had lost something, but could not remember what it was.",
        "The {n} looked under the bed, behind the door and in the well.",
        "Then {other_a} came by and asked what was wrong.",
        "They talked until the sun went down.",
        "Only then did {p} understand: what had been missing was a friend.",
    ),
    (
        "One winter the snow was so deep that no one could leave the house.",
        "{p} had plenty of bread, but the neighbours had none.",
        "So the {n} dug a path from door to door.",
        "Behind the last door {other_a} was waiting, cold and hungry.",
        "They shared the bread, and the winter was not so long after all.",
    ),
    (
        "There was a race every spring, and {p} always came last.",
        "This time the {n} practised for many weeks.",
        "On the day of the race {other_a} fell into the ditch.",
        "{p} stopped, turned around and helped.",
        "They came last together, and everyone clapped for them the most.",
    ),
    (
        "{p} kept a secret in a wooden box.",
        "Everybody wanted to know what it was, but the {n} only smiled.",
        "One evening {other_a} asked very politely.",
        "{p} opened the box, and it was full of old letters.",
        "They read them until morning and laughed a lot.",
    ),
    (
        "A great storm came and blew the bridge away.",
        "{p} stood on one side and {other_a} stood on the other.",
        "The {n} had an idea and threw a rope across the water.",
        "Together they built a new bridge, plank by plank.",
        "It still stands today and carries the name of {p}.",
    ),
    (
        "{p} found a map with a cross on it.",
        "The {n} walked for three days and dug a hole as deep as a well.",
        "There was no gold, only a note: the treasure is the way.",
        "{p} was angry at first and then began to laugh.",
        "On the way home the {n} made friends with {other_a}.",
    ),
    (
        "{p} wanted to learn how to fly.",
        "The {n} jumped from a chair, then from a table, and always fell down.",
        '"You are doing it wrong," said {other_a}, who was watching.',
        "They built wings of paper and waited for the wind.",
        "The flight was very short, but {p} talked about it for years.",
    ),
    (
        "One day a letter arrived for {p}.",
        "It said: come quickly, we need {a}.",
        "So {p} went, although the way was long.",
        "At the end of the road {other_a} had got stuck in a hole.",
        "It took a minute to help and a whole evening to celebrate.",
    ),
    (
        "In the middle of the square stood a clock that had stopped.",
        "Everyone had tried to repair it, and everyone had failed.",
        "{p} looked inside and found {other_a} asleep between the wheels.",
        "The {n} woke it gently, and the clock began to tick.",
        "Since then time passes again, and always a little too fast.",
    ),
)
EXTRAS = (
    "It was a bright and windy morning.",
    "Nobody had expected that.",
    "The {n} thought about it for a long time.",
    '"I can do this," said {p}.',
    '"What a day," said {p}.',
    "The birds fell silent for a moment.",
    "{p} took a deep breath.",
    "It was not easy, but the {n} did not give up.",
    "Somewhere a bell was ringing.",
    "{p} was a little afraid, and went on anyway.",
    "It began to rain, and then it stopped again.",
    "The {n} had never seen anything like it.",
    '"Shall we?" asked {p}.',
)
ENDINGS = (
    "And that is how {p} found a home.",
    "And if you listen at night, you can still hear {p} laugh.",
    "The end.",
    "{p} slept very well that night.",
    "And they were friends for ever.",
    "From that day on, everyone in town knew {p} the {n}.",
    "And so the story of the {n} ends.",
    "That evening {p} was the happiest {n} in the world.",
)

POEM_ASKS = (
    "Write a poem about {a}",
    "A poem about {a}, please",
    "Can you write a short poem about {a}?",
    "Make a poem about {a}",
    "poem about {a}",
    "Give me a rhyme about {a}",
    "Write a few verses about {a}",
    "Sing me a song about {a}",
)
HAIKU_ASKS = ("Write a haiku about {a}", "haiku about {a}", "A haiku on {a}, please", "Can you make a haiku about {a}?")
COUPLETS = (
    ("The {n} went walking in the morning light,", "and came back home again at night."),
    ("I saw the {n} beside the sea,", "it turned around and smiled at me."),
    ("The wind was soft, the sky was grey,", "the {n} had nothing much to say."),
    ("A little {n}, a little song,", "the night is short, the road is long."),
    ("The {n} looked up and saw a star,", "and wondered why it was so far."),
    ("The rain came down on roof and tree,", "the {n} and I were drinking tea."),
    ("Oh {n}, my {n}, where have you been?", "In every land you have not seen."),
    ("Some sleep all day, some dance all night,", "the {n} just hums and feels all right."),
    ("The moon came up, the moon was round,", "the {n} sat down without a sound."),
    ("So ends the song, so ends the day,", "the {n} has gone its quiet way."),
)
HAIKU = (
    ("Morning on the hill,", "a small {n} is waiting there.", "Nobody comes by."),
    ("Rain falls on the roof.", "The {n} listens to the drops", "and forgets the time."),
    ("Snow on the window,", "and in it the {n} appears.", "Then the light goes out."),
    ("The wind turns a page.", "Someone drew the {n} there,", "looking back at me."),
    ("Late summer evening:", "the {n} and its long shadow", "are walking back home."),
)


def _fill(text: str, slots: dict[str, str]) -> str:
    return text.format(**slots)


def _slots(rng: random.Random, ask: str, held_out: bool) -> dict[str, str]:
    """Choose the words of a story. Invented ones occur only where the request gives them."""
    subject = words.noun(rng, held_out) if "{a}" in ask or "{n}" in ask else rng.choice(words.TRAIN_NOUNS)
    other = words.noun(rng, held_out) if "{b}" in ask else rng.choice(words.TRAIN_NOUNS)
    hero = words.name(rng, held_out) if "{p}" in ask else rng.choice(words.TRAIN_NAMES)
    return {
        "n": subject,
        "a": words.article(subject),
        "o": other,
        "b": words.article(other),
        "other_a": words.article(other),
        "p": hero,
        "place": rng.choice(words.PLACES),
        "an_adj": words.article(rng.choice(words.ADJECTIVES)),
    }


def tell(rng: random.Random, slots: dict[str, str], size: str = "medium") -> str:
    """Return a story in one to three paragraphs; `size` is short, medium or long."""
    sentences = [rng.choice(OPENINGS)]
    for plot in rng.sample(PLOTS, 2 if size == "long" else 1):
        sentences += (*plot[:2], plot[-1]) if size == "short" else plot
    for extra in rng.sample(EXTRAS, {"short": 0, "medium": rng.randint(0, 2), "long": 3}[size]):
        sentences.insert(rng.randint(1, len(sentences) - 1), extra)
    sentences.append(rng.choice(ENDINGS))
    text = [_fill(sentence, slots) for sentence in sentences]
    if size != "long":
        return " ".join(text)
    middle = len(text) // 2
    return " ".join(text[:middle]) + "\n\n" + " ".join(text[middle:])


def poem(rng: random.Random, slots: dict[str, str]) -> str:
    """Return two to four rhyming couplets about the noun."""
    return "\n".join(_fill(line, slots) for pair in rng.sample(COUPLETS, rng.randint(2, 4)) for line in pair)


def story_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """Return (request, story); the story uses the nouns and the name of the request."""
    draw = rng.random()
    if held_out:
        ask = rng.choice(HELD_OUT_ASKS)
    elif draw < 0.5:
        ask = rng.choice(ASKS)
    elif draw < 0.7:
        ask = rng.choice(ASKS_NAMED)
    elif draw < 0.85:
        ask = rng.choice(ASKS_PAIR)
    else:
        ask = rng.choice(ASKS_ANY)
    slots = _slots(rng, ask, held_out)
    size = "long" if "long" in ask else "short" if "short" in ask else rng.choice(("short", "medium", "medium", "long"))
    return _fill(ask, slots), tell(rng, slots, size)


def poem_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """Return (request, poem or haiku)."""
    ask, haiku = (rng.choice(HAIKU_ASKS), True) if rng.random() < 0.4 else (rng.choice(POEM_ASKS), False)
    slots = _slots(rng, ask, held_out)
    if haiku:
        return _fill(ask, slots), "\n".join(_fill(line, slots) for line in rng.choice(HAIKU))
    return _fill(ask, slots), poem(rng, slots)
