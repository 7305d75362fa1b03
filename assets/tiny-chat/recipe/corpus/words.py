"""Word lists for stories, poems and lists, and a maker of words that do not exist.

Every twelfth noun and name is held out: training never sees it, the evaluation asks for it.
"""

import random

ANIMALS = (
    "ant badger bat bear beaver bee beetle bison butterfly camel cat chicken cow crab crane cricket crocodile crow deer dog "
    "dolphin donkey dragonfly duck eagle elephant elk falcon ferret finch firefly flamingo fox frog gecko giraffe goat goose "
    "gorilla grasshopper hamster hare hawk hedgehog hen heron hippo horse hummingbird jackal jaguar jellyfish kangaroo kitten "
    "koala ladybird lamb leopard lion lizard llama lobster lynx magpie mole monkey moose moth mouse mule newt octopus otter owl "
    "ox panda panther parrot peacock pelican penguin pig pigeon pony porcupine puffin puppy quail rabbit raccoon ram rat raven "
    "reindeer rhino robin rooster salmon seagull seahorse seal shark sheep shrimp skunk sloth snail snake sparrow spider "
    "squirrel starfish stork swan tiger toad tortoise turkey turtle walrus wasp weasel whale wolf wombat woodpecker worm yak zebra"
).split()
PEOPLE = (
    "actor artist astronaut baker barber beekeeper blacksmith boy butcher captain carpenter chef child clown cook cowboy dancer "
    "detective doctor driver engineer explorer farmer fisherman gardener ghost giant girl grandmother guard hunter inventor judge "
    "juggler king knight librarian magician mayor mechanic mermaid merchant miner monk nurse painter pilot pirate plumber poet "
    "potter prince princess programmer queen robber sailor scientist shepherd shoemaker singer soldier student tailor teacher "
    "thief tourist vampire waiter watchmaker witch wizard writer alien dwarf dragon elf fairy gnome goblin griffin monster ogre "
    "phoenix robot snowman troll unicorn werewolf yeti zombie"
).split()
THINGS = (
    "acorn airplane anchor apple arrow balloon banana barrel basket bell bicycle boat book bottle box bridge broom bucket bus "
    "button cake camera candle car carpet carrot castle chair cheese clock cloud coat coconut coin comet compass computer cookie "
    "crown cup diamond door drum engine feather flag flower flute fork guitar hammer hat helicopter house island jar kettle key "
    "kite ladder lake lamp lantern leaf letter lighthouse map marble mirror moon mountain mushroom needle nest notebook onion "
    "orange paintbrush pancake pearl pen pencil piano pie pillow pizza planet potato pumpkin puzzle radio rainbow ring river "
    "rocket rope rose sandwich satellite scarf seed shell ship shoe shovel snowflake sock spaceship spoon star stone storm "
    "submarine suitcase sun sword table teapot telescope tent ticket tower toy train tree trumpet umbrella vase violin volcano "
    "wagon watch waterfall wheel whistle window windmill yacht server token cache scheduler laptop keyboard printer"
).split()
NOUNS = tuple(dict.fromkeys(ANIMALS + PEOPLE + THINGS))

NAMES = tuple(
    "Ada Alba Alma Amir Amy Anna Arlo Asha Ben Bella Bo Bruno Cara Carlo Chen Clara Cora Dan Daria Dina Ed Ella Elsa Emil Emma "
    "Eva Felix Finn Flora Freya Gino Grace Greta Hana Hank Hugo Ida Igor Ines Iris Ivan Jack Jade Jana Jim Joe Jonas Juan Julia "
    "Kai Kara Karl Kenji Kim Lara Leo Lena Lily Lin Liz Lola Luca Lucy Luis Luna Maja Mara Marco Maria Max Maya Mei Mia Mila Milo "
    "Mina Mona Nadia Nell Nia Nico Nils Nina Noah Nora Olga Oli Omar Oscar Otto Pablo Paul Pia Pip Priya Quinn Ravi Rex Rita Rob "
    "Rosa Ruby Ruth Sally Sam Sara Sasha Sofia Sven Tara Ted Tess Theo Tia Tim Tina Toby Tom Uma Una Vera Victor Wanda Will Willa "
    "Yara Yuki Yusuf Zack Zara Zoe".split()
)

PLACES = (
    "a small village",
    "a deep forest",
    "a quiet town",
    "a big city",
    "a green valley",
    "a high mountain",
    "a sunny island",
    "an old castle",
    "a busy harbour",
    "a snowy hill",
    "a warm desert",
    "a little garden",
    "a dark cave",
    "a wide meadow",
    "a windy coast",
    "a stone house",
    "a glass tower",
    "a far away land",
    "a hidden cove",
    "a sleepy farm",
    "a noisy market",
    "a data centre",
    "a floating city",
    "a frozen lake",
    "a red barn",
    "a rainy street",
    "an empty station",
    "a blue lagoon",
    "a paper town",
    "a library",
)
ADJECTIVES = (
    "small",
    "brave",
    "shy",
    "clever",
    "curious",
    "kind",
    "funny",
    "lonely",
    "proud",
    "quiet",
    "lazy",
    "gentle",
    "old",
    "young",
    "tiny",
    "happy",
    "grumpy",
    "sleepy",
    "bold",
    "patient",
    "polite",
    "silly",
    "wise",
    "golden",
    "blue",
    "red",
    "green",
    "silver",
    "purple",
    "strange",
    "lucky",
    "hungry",
    "busy",
    "magic",
    "cheerful",
)
COLOURS = (
    "red",
    "blue",
    "green",
    "yellow",
    "orange",
    "purple",
    "brown",
    "black",
    "white",
    "pink",
    "grey",
    "silver",
    "gold",
)
FRUITS = (
    "apple",
    "banana",
    "cherry",
    "grape",
    "lemon",
    "mango",
    "melon",
    "orange",
    "peach",
    "pear",
    "plum",
    "strawberry",
)
VEGETABLES = (
    "carrot",
    "potato",
    "onion",
    "tomato",
    "cucumber",
    "spinach",
    "broccoli",
    "pepper",
    "pea",
    "bean",
    "leek",
    "corn",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

HELD_OUT_NOUNS = NOUNS[5::12]
HELD_OUT_NAMES = NAMES[5::12]
TRAIN_NOUNS = tuple(noun for noun in NOUNS if noun not in HELD_OUT_NOUNS)
TRAIN_NAMES = tuple(name for name in NAMES if name not in HELD_OUT_NAMES)

_ONSETS = "b br c ch d dr f fl g gl gr h j k kl l m n p pl qu r s sh sk sn st t tr v w y".split()
_VOWELS = "a e i o u ai ee oo ou".split()
_CODAS = "b d f l ll m n nk p r rt s st x mp nd".split()


def invented_word(rng: random.Random) -> str:
    """Return a pronounceable lower-case word such as "glimpo"; teaches the model to copy rather than recall."""
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 2, 2, 3))))
    return word + (rng.choice(_CODAS) if rng.random() < 0.6 else "")


def noun(rng: random.Random, held_out: bool = False) -> str:
    """Return a noun to write about; one in four training nouns is invented."""
    if held_out:
        return rng.choice(HELD_OUT_NOUNS)
    return invented_word(rng) if rng.random() < 0.25 else rng.choice(TRAIN_NOUNS)


def name(rng: random.Random, held_out: bool = False) -> str:
    """Return a first name; one in five training names is invented."""
    if held_out:
        return rng.choice(HELD_OUT_NAMES)
    return invented_word(rng).capitalize() if rng.random() < 0.2 else rng.choice(TRAIN_NAMES)


def article(word: str) -> str:
    """Return the word with its indefinite article: "an owl", "a fox"."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def plural(word: str) -> str:
    """Return the regular plural of a noun."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"
