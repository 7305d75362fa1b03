"""The model and its training loop."""

import math
import random
import time
from pathlib import Path

import attention
import torch
from encode import Encoded, batches
from tokenizer import BOS, CONTEXT, END, EOS, PAD
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MATRIX_RATE, OTHER_RATE = 4e-3, 2e-3  # peak learning rates of the layers' matrices, and of embeddings and norms
LAST_SHARE, WARM_UP = 0.01, 200  # of the peak rate at the end; steps until the peak
BATCH_TOKENS = 2048


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the untrained model: 2.4 million parameters in five layers, six query heads on two KV heads."""
    bos, end, pad = (tokenizer.convert_tokens_to_ids(token) for token in (BOS, END, PAD))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=bos,
        eos_token_id=end,
        pad_token_id=pad,
    )
    config._attn_implementation = attention.NAME
    return LlamaForCausalLM(config)


def weighted_loss(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy in nats of ids [rows, length], each token counted by its weight.

    Logits are computed only where a token counts, rounded up to a multiple of 512 (a new shape is slow).
    """
    share = weights[:, 1:].flatten()
    counted = share.nonzero().squeeze(1)
    share, spare = share[counted], (0, -len(counted) % 512)
    share, counted = functional.pad(share, spare), functional.pad(counted, spare)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1)[counted])
    losses = functional.cross_entropy(logits.float(), ids[:, 1:].flatten()[counted], reduction="none")
    return (losses * share).sum() / share.sum()


def rate_share(step: int, steps: int) -> float:
    """Return which share of the peak learning rate a step has: a linear warm-up, then half a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LAST_SHARE + (1 - LAST_SHARE) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for embeddings and norms.

    Muon (Jordan et al. 2024) reached AdamW's loss in about three quarters of the time here, at 800,000 tokens.
    """
    layers = [p for p in model.model.layers.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in layers)]
    return [
        torch.optim.Muon(layers, lr=MATRIX_RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    samples: list[Encoded],
    out: Path,
    seed: int,
    strength: float,
) -> None:
    """Train for one pass over the samples, print progress, and save to `out` every 500 steps and at the end.

    `strength` scales the peak learning rates.
    """
    plan = list(batches(samples, BATCH_TOKENS, random.Random(seed)))
    print(f"{len(samples):,} samples, {sum(len(sample.ids) for sample in samples):,} tokens", flush=True)
    optimizers = build_optimizers(model)
    groups = [(group, group["lr"] * strength) for optimizer in optimizers for group in optimizer.param_groups]
    start, seen, recent = time.perf_counter(), 0, 0.0
    model.train()
    for step, (ids, weights) in enumerate(plan):
        for group, peak in groups:
            group["lr"] = peak * rate_share(step, len(plan))
        loss = weighted_loss(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen += ids.numel()
        recent = loss.item() if step == 0 else 0.98 * recent + 0.02 * loss.item()
        if step % 50 == 0:
            spent = time.perf_counter() - start
            print(
                f"step {step}/{len(plan)}  loss {recent:.3f}  {seen / spent:,.0f} tokens/s  {spent / 60:.1f} min",
                flush=True,
            )
        if step % 500 == 499:
            save(model, tokenizer, out)
    save(model, tokenizer, out)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a bf16 copy of the model, its configurations and its tokenizer to a folder."""
    copy = build_model(tokenizer)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    end, text_end = (tokenizer.convert_tokens_to_ids(token) for token in (END, EOS))
    copy.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=[end, text_end], pad_token_id=model.config.pad_token_id
    )
    copy.save_pretrained(out)
    tokenizer.save_pretrained(out)
