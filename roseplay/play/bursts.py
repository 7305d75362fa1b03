"""Bursts: many requests at once, and how much of their prompts sharing saved."""

from __future__ import annotations

from roseplay.engine.engine_like import HasTokenizer
from roseplay.formats.text import shown
from roseplay.recording.frame import BurstFigures
from roseplay.recording.request_registry import TrackedRequest
from roseplay.traffic.metrics import ms, percentile
from roseplay.traffic.pace import Conditions, Size, Speed, answered_s, fitted, sustained_rate
from roseplay.traffic.prompts import KINDS, QUESTIONS, PromptSource, prompt_source

MAX_SIZE = 64
MAX_SEED = 2**63 - 1
LABELS = {"unique": "unique", "equal": "equal", "shared_head": "same start", "mix": "mixed lengths"}

REPEATED = "What is a KV block?"

# Defaults of the page's controls, unless the model is too slow for them.
DEFAULT_KIND, DEFAULT_BURST, DEFAULT_ANSWER, DEFAULT_RATE = "shared_head", 20, 64, 4.0
ANSWER_STEP = 16
_ANSWERED_S = 8.0  # how long people watch a burst


def default_traffic(speed: Speed | None) -> dict[str, float]:
    """Returns the controls' defaults ``burst``, ``answer`` and ``rate``, which suit a model of this speed."""
    size = Size(requests=DEFAULT_BURST, answer=DEFAULT_ANSWER, mix=KINDS[DEFAULT_KIND])
    rate = DEFAULT_RATE
    if speed is not None:
        under = Conditions(others=4)
        size = fitted(size, lambda one: answered_s(one, speed, under), _ANSWERED_S, prompts=False)
        half = float(f"{sustained_rate(size, speed, under) / 2:.1g}")  # with one significant digit
        rate = min(rate, max(0.1, half))
    answer = max(ANSWER_STEP, size.answer - size.answer % ANSWER_STEP)
    return {"burst": size.requests, "answer": answer, "rate": rate}


def kind_of(name: str) -> str:
    """Returns the key of a kind of burst, given its key or label; raises ``ValueError`` for anything else."""
    wanted = str(name).strip().lower()
    for key, label in LABELS.items():
        if wanted in (key, label) or wanted.replace(" ", "_").replace("-", "_") == key:
            return key
    raise ValueError(f"there is no burst of kind {shown(name)}: use one of {', '.join(LABELS)}")


def traffic_source(engine: HasTokenizer, kind: str, seed: int) -> PromptSource:
    """Returns the source of prompts for bursts and steady traffic.

    Prompts begin with the seed, so that two bursts share no prefix: otherwise the second would find the first one's
    prompts in the prefix cache, and any change made in between would seem to have helped.
    """
    turn = seed % len(QUESTIONS)
    bodies = [f"{seed}: {question}" for question in QUESTIONS[turn:] + QUESTIONS[:turn]]
    if kind == "mix":
        bodies = [f"{seed}: {REPEATED}"]
    return prompt_source(engine, bodies, seed=seed)


class Burst:
    """The requests of one burst and their progress."""

    def __init__(self, burst_id: int, kind: str, size: int, seed: int, answer: int, block_size: int) -> None:
        self.burst_id = burst_id
        self.kind = kind
        self.size = size
        self.seed = seed
        self.answer = answer  # tokens per request
        self.requests: list[TrackedRequest] = []
        self._block_size = block_size
        self._sent: BurstFigures | None = None

    def figures(self) -> BurstFigures:
        saved = [tracked.cached + tracked.shared for tracked in self.requests]
        ttft = sorted(tracked.ttft_s for tracked in self.requests if tracked.ttft_s is not None)
        return {
            "burst": self.burst_id,
            "kind": self.kind,
            "label": LABELS[self.kind],
            "size": self.size,
            "seed": self.seed,
            "answer": self.answer,
            "done": sum(tracked.finished for tracked in self.requests),
            "prompt_tokens": sum(tracked.prompt_tokens for tracked in self.requests),
            "computed": sum(max(0, t.computed - t.cached - t.shared) for t in self.requests),
            "saved": sum(saved),
            "cached": sum(tracked.cached for tracked in self.requests),
            "shared": sum(tracked.shared for tracked in self.requests),
            "blocks_saved": sum(tokens // self._block_size for tokens in saved),
            "ttft_p50": ms(percentile(ttft, 50), 1),
            "ttft_p95": ms(percentile(ttft, 95), 1),
        }

    def changed_figures(self) -> BurstFigures | None:
        """Returns the figures if they have changed since the last call, else ``None``."""
        if self._sent and self._sent["done"] == self.size:
            return None
        figures = self.figures()
        if figures == self._sent:
            return None
        self._sent = figures
        return figures
