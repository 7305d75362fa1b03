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

LAST_RATE, WARM_UP = 2e-5, 200
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


def rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LAST_RATE + (peak - LAST_RATE) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    samples: list[Encoded],
    out: Path,
    seed: int,
    peak: float,
) -> None:
    """Train for one pass over the samples, print progress, and save to `out` every 500 steps and at the end.

    `peak` is the highest learning rate.
    """
    plan = list(batches(samples, BATCH_TOKENS, random.Random(seed)))
    print(f"{len(samples):,} samples, {sum(len(sample.ids) for sample in samples):,} tokens", flush=True)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    start, seen, recent = time.perf_counter(), 0, 0.0
    model.train()
    for step, (ids, weights) in enumerate(plan):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, len(plan), peak)
        loss = weighted_loss(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
