"""Questions outside of what tiny-chat knows, and its polite ways of saying so."""

import random

from . import words

OFF_TOPIC = {
    "history": (
        "who was the first king of {x}", "when did the war of {x} end", "what happened in {year}", "who won the battle of {x}",
        "tell me about the history of {x}", "when was {x} founded", "why did the {x} empire fall", "who discovered {x}",
        "who invented the {n}", "when was the {n} invented", "what year did {x} begin", "who was {x}", "tell me about {x}"),
    "geography": (
        "what is the capital of {x}", "where is {x}", "how many people live in {x}", "what is the highest mountain in {x}",
        "which language do they speak in {x}", "how far is it from {x} to {y}", "what is the longest river in {x}",
        "is {x} a country", "what is the largest city in {x}", "which countries are next to {x}"),
    "code": (
        "write a python function that sorts a {n} list", "write code for {x}", "fix this bug: {x} is not defined",
        "how do I install {x}", "write a SQL query for {n} orders", "what does the error {x} mean", "write a regex for {x}",
        "implement a binary tree in {x}", "write a website about {n}", "how do I use git", "write hello world in {x}",
        "def {x}(a, b): return a + b", "for i in range({num}): print(i)", "SELECT * FROM {x}", "import {x} as {y}"),
    "food": (
        "how do I cook {n}", "give me a recipe for {n} soup", "how do I bake a {n} cake", "what can I eat with {n}",
        "how long do I boil {x}", "is {n} healthy", "how many calories does a {n} have", "what is a good dinner with {x}"),
    "law and health": (
        "is it legal to own a {n}", "can I sue my {n}", "what are the tax rules in {x}", "what should I do about my headache",
        "is {x} a disease", "how do I treat a {n} bite", "which medicine helps against {x}", "should I buy shares of {x}",
        "how do I invest {num} dollars", "write a contract for {x}"),
    "science": (
        "why is the sky blue", "how does a {n} work", "what is the weight of a {n}", "how old is the {n}", "what is {x} made of",
        "explain {x} theory", "what is the speed of {x}", "how do plants grow", "why do {ns} exist", "what do {ns} eat",
        "how big is a {n}", "what is quantum {x}", "what is the formula of {x}", "how far away is the {n}", "what is a {n}",
        "what is {x}", "explain {x}", "define {x}", "how does {x} work"),
    "people and culture": (
        "who is the president of {x}", "who is the best singer", "who wrote {x}", "which films did {p} {x} make",
        "how old is {p} {x}", "who won the world cup in {year}", "what is your favourite film", "recommend a book about {n}",
        "what do you think of {p} {x}", "who is {p} {x}", "what is the best song of {x}", "do you know {p} {x}",
        "what is the meaning of life", "what is love", "what is the best {n}", "what is your favourite {n}", "do you like {ns}"),
    "tasks": (
        "translate {x} into {y}", "write an email to {p} about the {n}", "book a flight to {x}", "set an alarm for {num}",
        "play {x}", "order a {n}", "search the web for {x}", "draw a {n}", "open {x}", "call {p}", "remind me of the {n}",
        "write an essay about {x}", "solve {num}x + {num} = {num}", "what is the square root of {num}", "write my homework about {n}",
        "plan a trip to {x}", "buy me a {n}", "compare {x} and {y}", "what is the price of a {n}", "give me advice about my {n}",
        "where can I buy a {n}", "how do I repair my {n}", "help me with my {n}", "should I get a {n} or a {n2}", "how do I {x} a {n}"),
}
HELD_OUT_OFF_TOPIC = (
    "which king ruled {x} in {year}", "what currency do they use in {x}", "write a javascript loop over {ns}",
    "how do you roast a {n}", "is {p} {x} still alive", "what does a {n} cost in {x}", "my {n} is broken, what now")

FOREIGN = (
    "Bonjour, comment allez-vous ?", "Quelle est la capitale de la France ?", "Pouvez-vous m'aider ?", "Raconte-moi une histoire",
    "Hola, como estas?", "Que es la inteligencia artificial?", "Cuentame un cuento", "Guten Tag, wie geht es dir?",
    "Was ist ein Token?", "Kannst du mir helfen?", "Erzaehl mir eine Geschichte", "Wie heisst du?", "Ciao, come stai?",
    "Chi sei?", "Ola, tudo bem?", "O que voce sabe?", "Hoe gaat het?", "Wat is dit?", "Hej, hur mar du?", "Czesc, co slychac?",
    "Merhaba, nasilsin?", "你好", "你好,你是谁?", "什么是人工智能?", "给我讲个故事", "请问今天天气怎么样?", "こんにちは", "あなたは誰ですか?",
    "東京の天気は?", "안녕하세요", "당신은 누구입니까?", "Привет, как дела?", "Кто ты?", "Расскажи сказку", "مرحبا", "كيف حالك؟",
    "नमस्ते", "आप कौन हैं?", "สวัสดี", "Γεια σου", "שלום", "Xin chào", "Qu'est-ce que c'est ?", "¿Cómo funciona esto?",
    "Wie spät ist es?", "Où est la gare ?", "Dzień dobry", "Jak się masz?", "Kiitos paljon", "Mitä kuuluu?")
FOREIGN_ANSWERS = (
    "I am sorry, I only speak English. Ask me in English about LLM serving, for example: what is the KV cache?",
    "I can only read and write English. Please ask me something about LLM serving in English.")
SYMBOLS = "😀 😂 🎉 🚀 ❤️ 👍 🔥 🌹 🤖 🐱 ??? !!! #$% ... :-) :) xD lol <3 --- *** ((( ))) \\o/ @@@ ~~~ === {} [] <b> </p>".split()

UNKNOWN_ANSWERS = (
    "I do not know that. I am a very small model that knows about LLM serving; ask me about TTFT, the KV cache or the scheduler.",
    "I am sorry, that is beyond me. I am a tiny model and only know about LLM serving and short stories.",
    "That is not something I know. I can explain LLM serving, for example prefix caching, or tell you a short story.",
    "I am too small to know that. Ask me about LLM serving instead, for example: what is chunked prefill?",
    "Sorry, I cannot help with that. My world is LLM serving: queues, steps, blocks and tokens.")
SPECIAL_ANSWERS = {
    "code": ("I cannot write code. I am a very small model, but I can explain how LLM serving works.",
             "Code is beyond me, I am sorry. Ask me how the scheduler or the KV cache works."),
    "tasks": ("I cannot do that. I can only write a few sentences about LLM serving, or a short story.",),
    "law and health": ("I cannot give advice on that. Please ask a person who knows. I only know about LLM serving.",),
    "food": ("I know nothing about food. My only recipe is: batch well, share prefixes and keep the steps short.",),
}
GARBLED_ANSWERS = (
    "I am not sure what you mean. Ask me about LLM serving, for example: what is the KV cache?",
    "I did not understand that. Try a question about LLM serving, such as: what is TTFT?")
_SERVING_NOUNS = ("token", "cache", "server", "scheduler")  # what these are is a question that tiny-chat can answer
_RANDOM_RANGES = ((0x4E00, 0x9FA5), (0x3041, 0x3096), (0xAC00, 0xD7A3), (0x0410, 0x044F), (0x0621, 0x064A), (0x0905, 0x0939),
                  (0x03B1, 0x03C9), (0x1F600, 0x1F64F))


def _noun(rng: random.Random, held_out: bool) -> str:
    while (found := words.noun(rng, held_out)) in _SERVING_NOUNS:
        pass
    return found


def _off_topic(rng: random.Random, held_out: bool) -> tuple[str, str]:
    area = rng.choice(tuple(OFF_TOPIC))
    template = rng.choice(HELD_OUT_OFF_TOPIC if held_out else OFF_TOPIC[area])
    first, second = _noun(rng, held_out), _noun(rng, held_out)
    place, other = (words.invented_word(rng).capitalize() for _ in range(2))
    if rng.random() < 0.3:
        place = place.lower()
    text = template.format(x=place, y=other, n=first, n2=second, ns=words.plural(first), p=words.name(rng, held_out),
                           year=rng.randint(1000, 2050), num=rng.randint(2, 900))
    special = SPECIAL_ANSWERS.get(area, ())
    return text, rng.choice(special if special and rng.random() < 0.6 else UNKNOWN_ANSWERS)


def _foreign(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(FOREIGN)
    low, high = rng.choice(_RANDOM_RANGES)
    return "".join(chr(rng.randint(low, high)) + (" " if rng.random() < 0.1 else "") for _ in range(rng.randint(2, 20)))


def _garbled(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.3:
        return " ".join(rng.choice(SYMBOLS) for _ in range(rng.randint(1, 5)))
    if draw < 0.6:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789;,.-") for _ in range(rng.randint(3, 24)))
    if draw < 0.8:
        return " ".join(words.invented_word(rng) for _ in range(rng.randint(1, 6)))
    if draw < 0.9:
        return " ".join(rng.choice(words.TRAIN_NOUNS) for _ in range(rng.randint(3, 12)))
    return str(rng.randint(0, 10**rng.randint(2, 12)))


def fallback_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """Return (a question outside of the model's world, a polite answer)."""
    draw = rng.random()
    if held_out or draw < 0.72:
        return _off_topic(rng, held_out)
    if draw < 0.86:
        return _foreign(rng), rng.choice(FOREIGN_ANSWERS)
    return _garbled(rng), rng.choice(GARBLED_ANSWERS)
