"""Greedy equality: where transformers sees a clear winner, the engine must have chosen it."""

from __future__ import annotations

import torch

TIE = 1e-3


def assert_greedy(model: torch.nn.Module, prompt: list[int], output: list[int], tie: float = TIE) -> None:
    """Every output token is the best one after the tokens before it, or within ``tie`` (logits) of the best.

    Forced along the engine's own tokens, so one near tie does not hide what follows.
    """
    tokens = torch.tensor([[*prompt, *output]])
    with torch.inference_mode():
        logits = model(tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    chosen = logits[torch.arange(len(output)), torch.tensor(output)]
    gaps = logits.max(-1).values - chosen
    assert gaps.max() <= tie, f"token {int(gaps.argmax())} is {gaps.max():.4f} below the best"


def generate(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """The answer of transformers' own ``generate``."""
    with torch.inference_mode():
        output = model.generate(  # type: ignore[operator]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()


def assert_same_until_a_tie(model: torch.nn.Module, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """The two answers agree up to a position where the best two logits are within ``TIE``."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *ours[:index]]]), use_cache=False).logits[0, -1].float()
            best = logits.topk(2).values
            assert best[0] - best[1] <= TIE, f"token {index}: {a} is not generate()'s {b}"
            return
