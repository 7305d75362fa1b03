"""Models that also read images: their text part generates the same tokens as the whole model."""

from __future__ import annotations

import json
import logging
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
from roseplay.model.probe import randomise
from roseplay.model.runner import ModelRunner
from roseplay.model.text_part import NOT_TEXT, SERVED
from tests.model.families import base
from tests.model.harness import BLOCK_SIZE, PLAIN, Driver, eager_logits, random_tokens, refusal, reporter_of_all, saved

CONFIG = EngineConfig(device="cpu", dtype="float32", num_blocks=32, block_size=BLOCK_SIZE, **PLAIN)

_TEXT = base(num_hidden_layers=2)
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_VISION = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32}
_QWEN: dict[str, Any] = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}


def _rope(*sections: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}}


WHOLE: dict[str, Callable[[], Any]] = {
    "gemma3": lambda: tf.Gemma3Config(
        text_config={
            **_TEXT,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config=_VISION,
        mm_tokens_per_image=4,
        image_token_index=90,
        boi_token_index=91,
        eoi_token_index=92,
    ),
    "llava": lambda: tf.LlavaConfig(
        text_config=tf.LlamaConfig(**_TEXT), vision_config=tf.CLIPVisionConfig(**_VISION), image_token_index=90
    ),
    "mistral3": lambda: tf.Mistral3Config(
        text_config=tf.MistralConfig(**_TEXT, head_dim=8),
        vision_config=tf.PixtralVisionConfig(**_VISION, head_dim=8),
        image_token_index=90,
    ),
    "qwen2_vl": lambda: tf.Qwen2VLConfig(
        text_config={**_TEXT, **_rope(1, 1, 2)},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2},
        **_QWEN,
    ),
    "qwen2_5_vl": lambda: tf.Qwen2_5_VLConfig(
        text_config={**_TEXT, **_rope(1, 1, 2)}, vision_config=_QWEN_VISION, **_QWEN
    ),
    "qwen3_vl": lambda: tf.Qwen3VLConfig(
        text_config={**_TEXT, "head_dim": 16, **_rope(4, 2, 2)},
        vision_config={**_QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        **_QWEN,
    ),
}


def saved_whole(kind: str, directory: Path, tied: bool = True) -> tf.PreTrainedModel:
    """Save a checkpoint of a tiny whole model; returns the model."""
    config = WHOLE[kind]()
    config.tie_word_embeddings = tied
    model = tf.AutoModelForImageTextToText.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    randomise(model)
    model.tie_weights()
    saved(model, directory)
    return model


def test_all_that_are_served_are_compared() -> None:
    assert set(WHOLE) == set(SERVED)


@pytest.mark.parametrize(
    ("kind", "tied"), [("gemma3", False), *((kind, number % 2 == 0) for number, kind in enumerate(WHOLE))]
)
def test_logits_and_tokens_are_those_of_the_whole_model_and_no_weights_for_images_are_read(
    kind: str, tied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, sent = saved_whole(kind, tmp_path, tied), list[Progress]()
    with caplog.at_level(logging.WARNING, "roseplay"):
        loaded = load_model(str(tmp_path), CONFIG, reporter_of_all(sent))
    (choice,) = loaded.choices
    assert f"only the text part of {type(whole).__name__}" in choice.chosen
    assert caplog.messages == [f"{tmp_path}: {choice.chosen}"]
    text = sum(weight.numel() for name, weight in whole.named_parameters() if not NOT_TEXT.match(name))
    assert loaded.num_parameters == text < sum(weight.numel() for weight in whole.parameters())
    last = [progress for progress in sent if progress.stage == "weights"][-1]
    assert last.done == pytest.approx(last.total, rel=0.3)  # the file also has a header
    assert last.total < sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))

    prompt = random_tokens(20, 88, 0)
    generated = whole.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0].tolist()
    driver = Driver(ModelRunner(loaded, CONFIG), [generated])
    for computed in range(20, 28):
        logits = driver.step({0: 20 if computed == 20 else 1})[0]
        assert int(logits.argmax()) == generated[computed]
    assert (logits - eager_logits(whole, generated[:27])[-1]).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava"])
def test_names_of_newer_and_older_checkpoints(kind: str, tmp_path: Path) -> None:
    """With ``model.`` before every name, and without ``language_model``."""
    saved_whole(kind, tmp_path, tied=False)
    expected = load_model(str(tmp_path), EngineConfig(device="cpu", pack_weights=False)).model.state_dict()
    weights = load_file(tmp_path / "model.safetensors")
    for rename in (
        lambda name: name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head"),
        lambda name: name.replace("model.language_model.", "model.").replace("language_model.model.", "model."),
    ):  # fmt: skip
        renamed = {rename(name): weight for name, weight in weights.items()}
        save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        found = load_model(str(tmp_path), EngineConfig(device="cpu", pack_weights=False)).model.state_dict()
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_random_weights_have_the_shape_of_the_text_part(tmp_path: Path) -> None:
    WHOLE["qwen3_vl"]().save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), EngineConfig(device="cpu", random_weights=True))
    assert type(loaded.model).__name__ == "Qwen3ForCausalLM" and len(loaded.kv_shapes) == 2


@pytest.mark.parametrize(
    ("config", "why"), [(tf.LlavaNextConfig, "llava_next is multimodal"), (tf.PaliGemmaConfig, "this paligemma")]
)
def test_others_are_refused_by_name(config: Any, why: str, tmp_path: Path) -> None:
    config().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nobody has read this")
    assert why in refusal(tmp_path)


def test_a_quantized_whole_is_dequantized_or_refused_as_others_are(tmp_path: Path) -> None:
    saved_whole("llava", tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "quantization_config": {"quant_method": "awq"}}))
    assert "quantized with awq" in refusal(tmp_path)
