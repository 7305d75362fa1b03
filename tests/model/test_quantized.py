"""Checkpoints in several files, with tied weights, and with quantized ones: read correctly, or refused at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from roseplay.config import EngineConfig
from roseplay.core.progress import Progress
from roseplay.model.loader import load_model
from roseplay.model.runner import ModelRunner
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import BLOCK_SIZE, PLAIN, check_logits, make_runner, random_tokens, refusal, reporter_of_all

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4 = torch.cat([FP4, -FP4])
CPU = EngineConfig(device="cpu", dtype="float32", num_blocks=16, block_size=BLOCK_SIZE, **PLAIN)


def save(directory: Path, config: Any, weights: dict[str, torch.Tensor], quantization: dict[str, Any] | None) -> str:
    """Save a checkpoint in two files with an index; returns its directory."""
    config.save_pretrained(directory)
    if quantization is not None:
        document = json.loads((directory / "config.json").read_text())
        document["quantization_config"] = quantization
        (directory / "config.json").write_text(json.dumps(document))
    names, where = sorted(weights), {}
    for number in (0, 1):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        part = {name: weights[name].contiguous() for name in names[number::2]}
        save_file(part, directory / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return str(directory)


def stored(model: tf.PreTrainedModel, directory: Path) -> dict[str, torch.Tensor]:
    """A model's weights under the names used by its family's checkpoints."""
    model.save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def to_fp8(weight: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the fp8 numbers, a scale for each square block, and the dequantized weight."""
    rows, columns = weight.shape
    tiles = weight.reshape(rows // block, block, columns // block, block)
    scale = tiles.abs().amax(dim=(1, 3)) / 448
    numbers = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    meant = (numbers.float() * scale[:, None, :, None]).reshape(rows, columns)
    return numbers.reshape(rows, columns), scale, meant


def to_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes in groups of 32 along the input, their exponents, and the dequantized weight ``[experts, in, out]``."""
    groups = weight.transpose(1, 2).unflatten(-1, (-1, 32))
    exponent = (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    codes = ((groups / exponent.exp2()).unsqueeze(-1) - FP4).abs().argmin(-1)
    meant = (FP4[codes] * exponent.exp2()).flatten(-2).transpose(1, 2)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return blocks, (exponent.squeeze(-1) + 127).to(torch.uint8), meant


def fp8_checkpoint(family: str, directory: Path) -> tuple[str, tf.PreTrainedModel]:
    model = tiny_model(FAMILIES[family]())
    weights, meant = stored(model, directory / "plain"), {}
    for name, weight in list(weights.items()):
        meant[name] = weight
        if weight.ndim == 2 and "proj" in name:
            weights[name], weights[f"{name}_scale_inv"], meant[name] = to_fp8(weight, 8)
    save_file(meant, directory / "plain" / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [8, 8]}
    plain = tf.AutoModelForCausalLM.from_pretrained(directory / "plain", attn_implementation="eager").eval()
    return save(directory, model.config, weights, settings), plain


def mxfp4_checkpoint(directory: Path) -> tuple[str, tf.PreTrainedModel]:
    config = FAMILIES["gpt_oss"]()
    config.intermediate_size = 64
    model = tiny_model(config)
    weights = stored(model, directory / "plain")
    for name, weight in list(weights.items()):
        if name.endswith(("gate_up_proj", "down_proj")):
            del weights[name]
            weights[f"{name}_blocks"], weights[f"{name}_scales"], meant = to_mxfp4(weight)
            model.get_parameter(name).data = meant
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    return save(directory, config, weights, settings), model


QUANTIZED: dict[str, Callable[[Path], tuple[str, tf.PreTrainedModel]]] = {
    "fp8, dense": lambda directory: fp8_checkpoint("qwen3", directory),
    "fp8, experts": lambda directory: fp8_checkpoint("qwen3_moe", directory),
    "mxfp4": mxfp4_checkpoint,
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_logits_are_those_of_the_dequantized_model(kind: str, tmp_path: Path):
    """Progress counts what the files hold, and no more memory is needed than for the weights that are made of them."""
    directory, plain = QUANTIZED[kind](tmp_path)
    needed = sum(4 * p.numel() for p in plain.parameters())
    assert "0.0 GiB in float32" in refusal(directory, needed // 2, dtype="float32")
    sent: list[Progress] = []
    loaded = load_model(directory, CPU, reporter_of_all(sent), free_bytes=lambda: needed + 4096)
    last = [progress for progress in sent if progress.stage == "weights"][-1]
    assert last.total == sum(file.stat().st_size for file in tmp_path.glob("model-*.safetensors"))
    assert last.done == pytest.approx(last.total, rel=0.25)  # the file also has a header
    assert loaded.weight_bytes > 4 * sum(p.numel() for p in plain.model.layers.parameters())
    assert loaded.choices[0].part == "checkpoint"
    assert loaded.choices[0].chosen.startswith(kind.partition(",")[0]) and "float32" in loaded.choices[0].chosen
    check_logits(ModelRunner(loaded, CPU), plain, random_tokens(20, 97, 0))


def test_tied_weights_in_several_files(tmp_path: Path):
    config = FAMILIES["llama"]()
    config.tie_word_embeddings = True
    model = tiny_model(config)
    weights = stored(model, tmp_path / "plain")
    assert "lm_head.weight" not in weights
    runner = make_runner(save(tmp_path, config, weights, None), **PLAIN)
    check_logits(runner, model, random_tokens(20, 97, 0))
    assert runner.info().num_parameters == sum(p.numel() for p in model.parameters())


def test_weights_that_are_used_as_they_are_stored_need_no_memory_to_be_read(tmp_path: Path):
    model = tiny_model(FAMILIES["llama"]())
    directory = save(tmp_path, model.config, stored(model, tmp_path / "plain"), None)
    load_model(directory, CPU, free_bytes=lambda: 0)
    assert "GiB in bfloat16" in refusal(directory, 0, dtype="bfloat16")
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "1 of its 2 files of weights are missing, model-00002" in refusal(directory), "before others are read"


REFUSED: dict[str, dict[str, Any]] = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
    "torchao": {"quant_method": "torchao", "quant_type": {"default": {}}},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "an unnamed method": {"bits": 4},
}


@pytest.mark.parametrize("method", REFUSED)
def test_other_methods_are_refused_by_name_before_anything_is_read(method: str, tmp_path: Path):
    FAMILIES["llama"]().save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "quantization_config": REFUSED[method]}))
    (tmp_path / "model.safetensors").write_bytes(b"nobody has read this")
    assert f"quantized with {method}, " in refusal(tmp_path)
    assert load_model(str(tmp_path), EngineConfig(device="cpu", random_weights=True)).num_parameters > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "which its config does not mention"),
        ({"quant_method": "fp8"}, "not as fp8 is stored"),
    ],
)
def test_scales_that_nothing_would_apply_are_noticed(settings: dict[str, Any] | None, message: str, tmp_path: Path):
    model = tiny_model(FAMILIES["llama"]())
    weights = stored(model, tmp_path / "plain")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name], weights[f"{name}_scale"] = weights[name].to(torch.float8_e4m3fn), torch.ones(1)
    assert message in refusal(save(tmp_path, model.config, weights, settings))


def test_a_quantized_model_in_memory_is_refused():
    model = tiny_model(FAMILIES["llama"]())
    model.is_quantized = True
    assert "quantized model in memory" in refusal(model)
