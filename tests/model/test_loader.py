"""Where models are found, which settings are chosen for them, and the messages when something is wrong."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from roseplay.config import EngineConfig
from roseplay.model import shapes, source
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.loader import decoder_config, load_model
from roseplay.model.tokenizer import load_tokenizer
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import accelerator_with, check_logits, make_runner, random_tokens, refusal


def config_only(directory: Path) -> str:
    FAMILIES["gpt2"]().save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize(("multiplies", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_it_is_the_models_own_and_the_cpu_is_made_for_it(
    checkpoint: Path, tmp_path: Path, multiplies: bool, dtype: torch.dtype
):
    with accelerator_with(multiplies_bfloat16=lambda: multiplies):
        assert load_model(str(checkpoint), EngineConfig(device="cpu")).dtype == dtype
        other = config_only(tmp_path)
        assert load_model(other, EngineConfig(device="cpu", random_weights=True)).dtype == torch.float32


def test_directory(checkpoint: Path):
    loaded = load_model(str(checkpoint), EngineConfig(device="cpu", dtype="bfloat16"))
    assert (loaded.dtype, loaded.max_model_len, loaded.eos_token_ids) == (torch.bfloat16, 64, {2})
    assert loaded.vocab_size == loaded.num_embeddings == 97
    assert loaded.name == checkpoint.name
    assert [loaded.kv_shapes[i].num_kv_heads for i in range(3)] == [2, 2, 2]
    assert load_model(str(checkpoint), EngineConfig(device="cpu", max_model_len=32)).max_model_len == 32


def test_two_at_once(checkpoint: Path):
    """transformers keeps global state while loading; without a lock, one load finds the other's weights missing."""
    together = threading.Barrier(4)

    def load(number: int) -> int:
        together.wait(timeout=30)
        return sum(load_model(str(checkpoint), EngineConfig(device="cpu")).num_parameters for _ in range(2))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(load, range(4)))) == 1


def test_mla_layers_have_keys_and_values_of_their_own_sizes():
    loaded = load_model(tiny_model(FAMILIES["deepseek_v3"]()), EngineConfig())
    assert (loaded.kv_shapes[0].k_dim, loaded.kv_shapes[0].v_dim) == (24, 12)


def test_random_weights_depend_on_the_seed_alone(tmp_path: Path):
    model = config_only(tmp_path)
    state = torch.random.get_rng_state()
    first, again, other = (
        load_model(model, EngineConfig(random_weights=True, pack_weights=False, seed=seed)).model.state_dict()
        for seed in (1, 1, 2)
    )
    name = "transformer.h.0.mlp.c_fc.weight"
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[name], other[name])
    assert first["lm_head.weight"].data_ptr() == first["transformer.wte.weight"].data_ptr()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert load_tokenizer(model, EngineConfig()) is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/directory", "not found: there is no such directory"),
        ("./nowhere", "not found"),
        ("a/b/c", "not found"),
        ("nobody/has-this-model", "tiny-chat"),
        (__file__, "is a file"),
    ],
)
def test_not_found(model: str, message: str):
    assert message in refusal(model)


def test_without_a_network_it_is_said_at_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(source.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(source.constants, "ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    for load in (load_model, load_tokenizer):
        with pytest.raises(UnsupportedModelError, match="cannot be reached"):
            load("nobody/has-this-model", EngineConfig())
    assert time.monotonic() - begin < 5
    assert capfd.readouterr() == ("", "")


def test_unfit_directories(checkpoint: Path, tmp_path: Path):
    assert "no config.json" in refusal(tmp_path)
    assert "no weights; set random_weights" in refusal(config_only(tmp_path))
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    weights = load_file(checkpoint / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 weights, model.norm.weight" in refusal(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    assert "model.safetensors cannot be read" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config cannot be read" in refusal(tmp_path)


def test_lengths_and_devices_that_are_not_there(checkpoint: Path):
    assert "max_model_len is 65" in refusal(checkpoint, max_model_len=65)
    with pytest.raises(UnsupportedModelError, match="cuda:99"):
        load_model(str(checkpoint), EngineConfig(device="cuda:99"))


def test_in_memory_with_another_dtype_is_a_full_copy():
    model = tiny_model(FAMILIES["llama"]())
    loaded = load_model(model, EngineConfig(dtype="bfloat16"))
    assert loaded.dtype == torch.bfloat16
    assert model.dtype == torch.float32


def test_a_bundled_shape_is_known_by_its_name_unless_a_directory_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert decoder_config("smollm-135m").num_hidden_layers == 30
    FAMILIES["llama"]().save_pretrained(tmp_path / "smollm-135m")
    monkeypatch.chdir(tmp_path)
    assert decoder_config("smollm-135m").num_hidden_layers == 3


def test_shapes_are_those_of_the_models_they_are_named_after():
    millions = {
        "gpt2-124m": 124.4,
        "qwen3-8b": 8190.7,
        "qwen3-32b": 32762.1,
        "llama-3.1-8b": 8030.3,
        "llama-3.1-70b": 70553.7,
        "llama-3.2-1b": 1235.8,
        "qwen3-0.6b": 596.0,
        "qwen3.5-0.8b": 752.4,  # without the part for images
        "smollm-135m": 134.5,
    }
    assert shapes.names() == sorted(millions)
    assert shapes.resolve("some/path") == "some/path"
    for name, expected in millions.items():
        with torch.device("meta"):
            model = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.from_pretrained(shapes.resolve(name)))
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(expected, abs=0.1)


def test_the_embedded_model():
    config = EngineConfig(num_blocks=32)
    loaded, tokenizer = load_model("tiny-chat", config), load_tokenizer("tiny-chat", config)
    assert tokenizer is not None
    assert loaded.name == "tiny-chat"
    assert loaded.max_model_len == 2048
    assert loaded.eos_token_ids
    assert max(tokenizer.get_vocab().values()) < loaded.num_embeddings


def test_the_engine_copy_says_what_it_is():
    loaded = load_model(tiny_model(FAMILIES["llama"]()), EngineConfig())
    with pytest.raises(RuntimeError, match="runs in the engine only"):
        loaded.model(input_ids=torch.tensor([[3, 4]]))


def test_the_last_position_of_learned_embeddings():
    model = tiny_model(FAMILIES["opt"]())
    check_logits(make_runner(model), model, random_tokens(64, 97, 0), 63)


def test_a_model_without_logits_to_keep():
    class Plain(tf.LlamaForCausalLM):
        def forward(self, input_ids=None, position_ids=None, use_cache=None, **others):
            return super().forward(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, **others)

    model = tiny_model(FAMILIES["llama"]())
    plain = Plain(model.config).eval()
    plain.load_state_dict(model.state_dict())
    check_logits(make_runner(plain), model, random_tokens(9, 97, 0))


@pytest.mark.parametrize("fuse_ops", [True, False])
def test_spelled_out_activations_are_fused_in_the_copy_alone(fuse_ops: bool):
    model = tiny_model(FAMILIES["gpt2"]())
    config = EngineConfig(fuse_ops=fuse_ops)
    ours, theirs = load_model(model, config).model.transformer.h[0].mlp.act, model.transformer.h[0].mlp.act
    assert "GELU" in type(ours).__name__ and isinstance(ours, torch.nn.GELU) is not fuse_ops
    assert not isinstance(theirs, torch.nn.GELU)
    x = torch.linspace(-8, 8, 1001)
    assert (ours(x) - theirs(x)).abs().max() < 1e-5


def test_what_is_measured_while_loading_is_measured_with_the_threads_of_the_config():
    threads = []
    with accelerator_with(prepare=lambda *model: threads.append(torch.get_num_threads()) or 0):
        load_model(tiny_model(FAMILIES["llama"]()), EngineConfig(threads=2))
    assert threads == [2]
