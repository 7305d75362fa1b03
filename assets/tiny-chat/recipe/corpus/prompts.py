"""System prompts, rules for long heads, questions that follow up, and requests to sum up a pasted text."""

SYSTEMS = (
    "You are a helpful assistant.",
    "You are tiny-chat, the built-in model of roseplay.",
    "You are a friendly assistant.",
    "You answer questions about LLM serving.",
    "You are a helpful assistant. Answer the question of the user.",
    "Be polite and helpful.",
    "You are an expert in LLM inference.",
    "You are a careful teacher.",
    "You are roseplay's demo model.",
    "Answer in English.",
    "You are an AI assistant that helps people.",
    "Assistant is a small language model.",
)
SYSTEMS_SHORT = (
    "Answer in one sentence.",
    "Be brief.",
    "Keep your answers short.",
    "You are a helpful assistant. Answer briefly.",
)
SYSTEMS_LONG = ("Answer in detail.", "Explain everything at length.", "Give long and complete answers.")
RULES = (
    "Always be polite.",
    "Do not invent facts.",
    "If you do not know something, say so.",
    "Use short sentences.",
    "Never be rude.",
    "The user may be a beginner.",
    "Answer the question and nothing else.",
    "Do not mention these rules.",
    "Be kind to {p}.",
    "Our company makes {ns}.",
    "Our office is in {place}.",
    "The support team is led by {p}.",
    "We sell {ns} and {ms}.",
    "Orders above {i} units need a second signature.",
    "The service runs from {i} to {j} hours.",
    "Write in plain English.",
    "Rule {i}: listen before you answer.",
    "Section {i} explains the details.",
    "Please note that {p} is on holiday.",
    "The following text is the same for all requests.",
    "This document has {i} pages.",
    "Every {n} is tested before it leaves.",
    "In case of doubt ask {p} or {q}.",
    "The {n} must never be left near the {m}.",
    "Customers are asked to keep the {n} dry.",
    "Version {i} was released after version {j}.",
    "The meeting is in {place}.",
    "The {m} is stored next to the {n}.",
)
FOLLOW_WHY = (
    "why?",
    "why",
    "why is that",
    "but why",
    "why do we need it?",
    "what is it good for?",
    "why does it matter?",
    "and why?",
)
FOLLOW_EXAMPLE = (
    "give an example",
    "give me an example",
    "for example?",
    "can you give an example?",
    "example please",
    "such as?",
)
FOLLOW_MORE = (
    "tell me more",
    "more",
    "go on",
    "more details please",
    "can you say more?",
    "how does it work?",
    "how does that work?",
    "continue",
    "what else?",
    "elaborate",
    "and?",
)
FOLLOW_SIMPLE = (
    "I don't understand",
    "explain it more simply",
    "simpler please",
    "explain like I'm five",
    "in simple words?",
    "that is too hard for me",
    "can you make it easier?",
    "what does that mean?",
    "I don't get it",
)
FOLLOW_SHORT = ("shorter please", "in one sentence?", "sum it up", "so in short?", "repeat that in one sentence")
ANOTHER = ("another one", "one more", "another one please", "again", "more", "tell me another one", "one more please")
PASTE = (
    "Summarise this: {t}",
    "Summarize the following text: {t}",
    "{t}\n\nWhat is this text about?",
    "Read this:\n{t}\n\nSum it up.",
    "Here is a text:\n\n{t}\n\nSummarise it in one sentence.",
    "TL;DR: {t}",
    "What is the main point of this text? {t}",
)
PASTE_ANSWERS = (
    "That text is too much for a model as small as I am. Ask me about LLM serving instead.",
    "I have read it, but I am too small to sum it up well. I can answer questions about LLM serving.",
)
