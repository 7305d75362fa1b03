"""How people put a question: forms for each kind of question, wrappers around it, and sloppy typing.

Every list has a held-out twin that training never sees.
"""

import random

FORMS: dict[str, tuple[str, ...]] = {
    "what": (
        "what is {x}",
        "what's {x}",
        "whats {x}",
        "what are {x}",
        "what does {x} mean",
        "explain {x}",
        "define {x}",
        "describe {x}",
        "tell me about {x}",
        "tell me what {x} is",
        "can you explain {x}",
        "could you explain {x} to me",
        "explain to me what {x} is",
        "what do you know about {x}",
        "I want to know about {x}",
        "give me a definition of {x}",
        "what is meant by {x}",
        "I don't understand {x}",
        "I do not get {x}",
        "please describe {x}",
        "do you know what {x} is",
        "help me understand {x}",
        "what is {x} in LLM serving",
        "what is {x} in roseplay",
        "what exactly is {x}",
        "what on earth is {x}",
        "{x}",
        "{x}?",
        "what is this {x} thing",
        "and what is {x}",
        "so what is {x}",
        "I have heard of {x}, what is it",
        "teach me {x}",
        "I want to learn about {x}",
        "could you tell me what {x} means",
        "what does it mean when people say {x}",
        "is {x} important",
        "what is the idea of {x}",
        "what is the meaning of {x}",
        "how would you explain {x}",
        "how do you define {x}",
        "what is {x} and why does it matter",
        "explain what {x} does",
        "what does {x} do",
        "summarise {x}",
        "what is {x} about",
        "I read about {x}. What is it",
        "my boss talks about {x}. What is that",
        "who or what is {x}",
        "talk about {x}",
    ),
    "how": (
        "how does {x} work",
        "how do {x} work",
        "how exactly does {x} work",
        "explain how {x} works",
        "tell me how {x} works",
        "can you explain how {x} works",
        "how is {x} done",
        "how does {x} work in roseplay",
        "how does {x} behave",
        "what happens in {x}",
        "tell me more about {x}",
        "how does an engine handle {x}",
        "how is {x} used",
        "give me some facts about {x}",
        "how does {x} help",
    ),
    "why": (
        "why do we need {x}",
        "why is {x} used",
        "why {x}",
        "what is {x} good for",
        "why does {x} matter",
        "why is {x} useful",
        "why do people use {x}",
        "what is the point of {x}",
        "what is the purpose of {x}",
        "why should I care about {x}",
        "why use {x}",
        "what is the use of {x}",
        "what is the benefit of {x}",
        "why is {x} important",
        "why is there {x}",
        "what is {x} for",
        "why do engines have {x}",
        "what problem does {x} solve",
        "why would I want {x}",
        "when should I care about {x}",
    ),
    "example": (
        "give me an example of {x}",
        "what is an example of {x}",
        "show me an example of {x}",
        "can you give an example for {x}",
        "example of {x}",
        "give me a concrete example of {x}",
        "make an example of {x}",
        "{x}, with an example please",
    ),
    "simple": (
        "explain {x} like I'm five",
        "explain {x} like I am five",
        "explain {x} to a child",
        "explain {x} in simple words",
        "ELI5 {x}",
        "eli5: {x}",
        "what is {x} in plain words",
        "explain {x} simply",
        "what is {x} for dummies",
        "explain {x} without jargon",
        "how would you explain {x} to my grandmother",
        "give me a picture for {x}",
    ),
    "short": (
        "what is {x} in one sentence",
        "in one sentence, what is {x}",
        "explain {x} in one sentence",
        "explain {x} briefly",
        "briefly, what is {x}",
        "in short, what is {x}",
        "short definition of {x}",
        "one line about {x}",
        "what is {x}, in short",
    ),
    "long": (
        "explain {x} in detail",
        "tell me everything about {x}",
        "write a paragraph about {x}",
        "give me a long explanation of {x}",
        "explain {x} step by step",
        "write a long text about {x}",
        "explain {x} thoroughly",
        "I want to know everything about {x}",
        "write an essay about {x}",
        "what is {x}? Explain in detail",
        "give me all you know about {x}",
    ),
    "list": (
        "list some facts about {x}",
        "list three facts about {x}",
        "give me bullet points about {x}",
        "what should I know about {x}",
        "key points about {x}",
        "make a list about {x}",
        "summarise {x} in bullet points",
    ),
}
HELD_OUT_FORMS: dict[str, tuple[str, ...]] = {
    "what": (
        "would you mind explaining {x}",
        "any idea what {x} is",
        "I'm new here, what is {x}",
        "what do you mean by {x}",
        "I keep hearing about {x}, what is it",
        "give me the gist of {x}",
        "what is that, {x}",
    ),
    "how": ("how is it that {x} works", "in which way does {x} work"),
    "why": ("what do I gain from {x}", "for what reason do we use {x}", "is {x} worth it and why"),
    "example": ("could I see an example of {x}",),
    "simple": ("explain {x} as if I were a kid", "what is {x} in easy words"),
    "short": ("sum up {x} in a single sentence",),
    "long": ("give me a detailed explanation of {x}",),
    "list": ("some bullet points on {x}, please",),
}
CONTRAST_FORMS = (
    "what is the difference between {x} and {y}",
    "difference between {x} and {y}",
    "{x} vs {y}",
    "{x} versus {y}",
    "compare {x} and {y}",
    "how does {x} differ from {y}",
    "how is {x} different from {y}",
    "{x} or {y}, what is the difference",
    "is {x} the same as {y}",
    "what's the difference between {x} and {y}",
    "explain the difference between {x} and {y}",
    "I confuse {x} and {y}",
    "how do {x} and {y} relate",
    "what do {x} and {y} have to do with each other",
    "what is {x} compared to {y}",
    "{x} and {y}",
    "what are {x} and {y}",
    "explain {x} and {y}",
)
HELD_OUT_CONTRAST_FORMS = (
    "I mix up {x} and {y}, help",
    "in what way are {x} and {y} not the same",
    "tell {x} and {y} apart for me",
)

_PREFIXES = (
    "hey, ",
    "hi, ",
    "hello, ",
    "hello! ",
    "please ",
    "hey, tell me, ",
    "quick question: ",
    "question: ",
    "so, ",
    "ok, ",
    "well, ",
    "um, ",
    "excuse me, ",
    "sorry, ",
    "tiny-chat, ",
    "dear model, ",
    "I was wondering, ",
    "can you tell me, ",
    "could you tell me: ",
    "I have a question. ",
    "one more thing: ",
    "just curious, ",
    "by the way, ",
    "for my homework: ",
    "Q: ",
    "user: ",
    "tell me: ",
    "first of all, ",
    "good morning, ",
    "as a beginner, I ask: ",
    "now ",
    "hm, ",
    "let me ask: ",
    "please tell me, ",
    "I am learning about serving. ",
    "I am new to this. ",
    "we use roseplay. ",
    "hey there! ",
    "yo, ",
    "[{i}] ",
    "Request {i}: ",
    "Question {i}: ",
    "Request #{i}: ",
    "User {i} asks: ",
    "{i}. ",
    "{i}) ",
    "Prompt {i}: ",
    "(request {i}) ",
    "Task {i}: ",
    "#{i} ",
)
_HELD_OUT_PREFIXES = (
    "hey mate, ",
    "if you do not mind: ",
    "here is another one: ",
    "honest question, ",
    "Query {i}: ",
    "",
)
_SUFFIXES = (
    ", please",
    " please",
    " thanks",
    ", thanks",
    " thank you",
    " for me",
    " if you can",
    " again",
    " now",
    " here",
    ", ok",
    " exactly",
    ". I am new to this",
    ". Thanks in advance",
    ". Answer please",
    ". Keep it simple",
    " (request {i})",
    " #{i}",
    " [{i}]",
    ". I really want to know",
    ". My friend asked me",
    " in this engine",
    " today",
    ", my friend",
    " actually",
    " anyway",
    " A:",
)
_HELD_OUT_SUFFIXES = (", cheers", ". That would be great", " pretty please", " ({i} of 40)", "")
_SOFT_TYPO = str.maketrans({"'": ""})


def wrap(rng: random.Random, question: str, held_out: bool = False) -> str:
    """Put fillers before and after a question, and give it an ending and a capital or none."""
    prefixes, suffixes = (_HELD_OUT_PREFIXES, _HELD_OUT_SUFFIXES) if held_out else (_PREFIXES, _SUFFIXES)
    if rng.random() < 0.3:
        question = rng.choice(prefixes).format(i=rng.randint(0, 999)) + question
    if rng.random() < 0.15 and question[-1].isalnum():
        question += rng.choice(suffixes).format(i=rng.randint(0, 999))
    if question[-1].isalnum() or question[-1] == ")":
        question += rng.choice(("?", "?", "?", "", "", ".", "!", "??", " ?"))
    return question[:1].upper() + question[1:] if rng.random() < 0.6 else question


def sloppy(rng: random.Random, text: str) -> str:
    """Now and then type in lower or upper case, drop apostrophes, or make a typing mistake."""
    draw = rng.random()
    if draw < 0.12:
        return text.lower()
    if draw < 0.14:
        return text.upper()
    if draw < 0.18:
        return text.translate(_SOFT_TYPO)
    if draw < 0.30:
        return _mistyped(rng, text)
    return text


def _mistyped(rng: random.Random, text: str) -> str:
    places = [
        i for i in range(1, len(text) - 1) if text[i - 1].isalpha() and text[i].isalpha() and text[i + 1].isalpha()
    ]
    if not places:
        return text
    at = rng.choice(places)
    return rng.choice(
        (
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
            text[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[at + 1 :],
        )
    )
