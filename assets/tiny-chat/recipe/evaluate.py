"""Ask the finished model what it has never been asked: held-out phrasings, fillers, nouns and names.

Prints answers, and for each kind of prompt the share that ends within 256 tokens, the share on topic and the
share that repeats itself, greedy and at temperature 0.7; then the loss on held-out and on training-like samples.
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import blind
import torch
from corpus import fallback, serving, smalltalk, stories
from corpus.conversations import Conversation, conversations, headed
from encode import Encoder, batches
from train import weighted_loss
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 4711
MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Case:
    """A conversation that ends with the expected answer, and texts of which one must occur in an answer on topic."""

    kind: str
    conversation: Conversation
    keywords: tuple[str, ...]

    @property
    def prompt(self) -> Conversation:
        """The conversation without the expected answer."""
        return self.conversation[:-1]


def _case(kind: str, question: str, answer: str, keywords: tuple[str, ...]) -> Case:
    return Case(kind, [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], keywords)


def _on_topic(turn: serving.Turn) -> tuple[str, ...]:
    """Return what an answer must hold one of: a whole sentence of the turn's topic, or a keyword where it has none."""
    topic = turn.topic
    if topic is None:
        return turn.keywords
    return topic.define + topic.details + topic.why + topic.example + topic.simple


def held_out_cases(count: int) -> list[Case]:
    """Return about `count` serving questions, and fewer of each other kind, none of which training has seen."""
    rng = random.Random(SEED)
    cases: list[Case] = []
    for _ in range(count):
        turn = serving.serving_turn(rng, held_out=True)
        cases.append(_case("serving", turn.question, turn.answer, _on_topic(turn)))
    for _ in range(count // 4):
        turn = serving.serving_turn(rng, held_out=True)
        cases.append(
            Case("serving below a long head", headed(rng, rng.choice((800, 2000, 4000)), turn), _on_topic(turn))
        )
        ask, text = stories.story_turn(rng, held_out=True)
        cases.append(_case("story", ask, text, (ask.rstrip("?").split()[-1],)))
        ask, text = fallback.fallback_turn(rng, held_out=True)
        cases.append(_case("off topic", ask, text, ("serving", "small", "recipe", "english")))
    for kind, questions in (("blind serving", blind.SERVING), ("blind other", blind.OTHER)):
        cases += [_case(kind, ask, "", texts) for ask, texts in questions]
    for ask, keywords in smalltalk.HELD_OUT_SMALLTALK:
        cases.append(_case("small talk", ask, "", keywords))
    return cases


def repeats(text: str, length: int = 8, times: int = 3) -> bool:
    """Return whether some run of `length` words occurs at least `times` times in the text."""
    found = text.split()
    runs = Counter(tuple(found[i : i + length]) for i in range(len(found) - length + 1))
    return any(seen >= times for seen in runs.values())


@torch.no_grad()
def answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[Conversation], temperature: float
) -> list[tuple[str, bool]]:
    """Return (answer, whether it ended by itself) for each prompt; temperature 0 is greedy."""
    tokenizer.padding_side = "left"
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    ends = set(model.generation_config.eos_token_id)
    order = sorted(range(len(prompts)), key=lambda i: sum(len(m["content"]) for m in prompts[i]))
    found: dict[int, tuple[str, bool]] = {}
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        inputs = tokenizer.apply_chat_template(
            [prompts[i] for i in chosen],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **sampling)
        for i, ids in zip(chosen, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            found[i] = tokenizer.decode(ids, skip_special_tokens=True), not ends.isdisjoint(ids)
    return [found[i] for i in range(len(prompts))]


@torch.no_grad()
def loss(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, samples: list[Conversation | str]) -> float:
    """Return the loss over samples in nats per token, weighted as in training."""
    total = weight = 0.0
    for ids, weights in batches(Encoder(tokenizer)(samples), 4096, random.Random(0)):
        counted = float(weights[:, 1:].sum())
        total += weighted_loss(model, ids, weights).item() * counted
        weight += counted
    return total / weight


def report(folder: Path, count: int = 200, shown: int = 4) -> None:
    """Load the model from a folder and print the evaluation."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cases = held_out_cases(count)
    for temperature in (0.0, 0.7):
        torch.manual_seed(SEED)
        replies = answers(model, tokenizer, [case.prompt for case in cases], temperature)
        print(f"\n== {'greedy' if not temperature else f'temperature {temperature}'}")
        for kind in dict.fromkeys(case.kind for case in cases):
            _print_kind(
                kind, [(case, *reply) for case, reply in zip(cases, replies, strict=True) if case.kind == kind], shown
            )
    held_out: list[Conversation | str] = [case.conversation for case in cases if case.conversation[-1]["content"]]
    print(f"\nloss on held-out phrasings {loss(model, tokenizer, held_out):.3f}")
    print(f"loss on training-like samples {loss(model, tokenizer, list(conversations(SEED, 1000))):.3f}")


def _print_kind(kind: str, rows: list[tuple[Case, str, bool]], shown: int) -> None:
    def on_topic(case: Case, text: str) -> bool:
        return any(word.lower() in text.lower() for word in case.keywords)

    count = len(rows)
    ended = sum(end for _, _, end in rows) / count
    topical = sum(on_topic(case, text) for case, text, _ in rows) / count
    repeating = sum(repeats(text) for _, text, _ in rows) / count
    print(f"\n{kind}: {count} prompts, {ended:.1%} end, {topical:.1%} on topic, {repeating:.1%} repeat themselves")
    off = [row for row in rows if not on_topic(row[0], row[1])]
    for case, text, end in rows[:shown] + off[:shown]:
        mark = " " if on_topic(case, text) and end else "!"
        print(f" {mark} {case.prompt[-1]['content'][-120:]!r}\n     -> {text!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).resolve().parent.parent, help="folder of the model"
    )
    parser.add_argument("--count", type=int, default=200, help="serving questions to ask")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    report(arguments.model, arguments.count)
