"""The JSON files of a checkpoint: what is read of them, and that others are refused in one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from roseplay.model.checkpoint_json import MAX_JSON, decoder_config, indexed_files, read_object, stored_tensors
from roseplay.model.errors import UnsupportedModelError


def refusal(act: Any) -> str:
    with pytest.raises(UnsupportedModelError) as error:
        act()
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    return str(error.value)


def test_fields_that_are_not_used_and_null_are_left_out() -> None:
    config = {"n_ctx": 512, "model_type": None, "somebody": "else", "rope_scaling": {"factor": 2, "other": 1}}
    assert decoder_config(config) == {"n_ctx": 512, "rope_scaling": {"factor": 2.0}}
    assert decoder_config({"n_ctx": 5, "text_config": {"n_ctx": 7}}, text=True) == {"n_ctx": 7}
    assert decoder_config({"n_ctx": 5, "text_config": None}, text=True) == {"n_ctx": 5}
    assert decoder_config({"intermediate_size": [8, 16]}) == {}  # a size of each layer


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"q_lora_rank": "12345678"}, "q_lora_rank"),
        ({"hidden_size": 10**400}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": float("inf")}}, "rope_scaling.factor"),
        ({"rope_scaling": {"factor": float("nan")}}, "rope_scaling.factor"),
        ({"rope_scaling": {"factor": 0}}, "rope_scaling.factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [5]}, "architectures.0"),
        ({"model_type": "x" * 201}, "model_type"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"quantization_config": {"bits": "4"}}, "quantization_config.bits"),
    ],
)
def test_a_field_of_another_type_or_size_is_named(config: dict[str, Any], field: str) -> None:
    assert f"as '{field}': " in refusal(lambda: decoder_config(config))
    assert f"as '{field}': " in refusal(lambda: decoder_config({"text_config": config}, text=True))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "out of range"),
        (b"", "EOF"),
        (b"[]", "is no JSON object"),
        (b"\xff\xfe", "cannot be read"),
        (b'"' + b"x" * MAX_JSON + b'"', "more than 32,000,000 bytes"),
    ],
    ids=["lists", "objects", "number", "empty", "list", "binary", "long"],
)
def test_a_file_that_is_no_object_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert reason in refusal(lambda: read_object(tmp_path / "config.json"))
    assert "cannot be read" in refusal(lambda: read_object(tmp_path / "absent.json"))


@pytest.mark.parametrize("weights", [["model.safetensors"], None, {"x": 5}, {"x": "../model.safetensors"}, {"x": ""}])
def test_an_index_names_files_of_its_directory(weights: Any, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}))
    assert indexed_files(index) == {"1.safetensors", "2.safetensors"}
    index.write_text(json.dumps({"weight_map": weights}))
    assert f"weight_map of {index.name}" in refusal(lambda: indexed_files(index))


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F32", "shape": [10**400], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 4]},
        {"dtype": 5, "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": "F32"},
        [],
    ],
)
def test_a_header_of_weights_is_checked(tensor: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"

    def write(one: Any, length: int | None = None) -> None:
        header = json.dumps({"__metadata__": {"format": "pt"}, "a": one}).encode()
        file.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)

    good = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    write(good)
    assert stored_tensors(file) == {"a": good} and stored_tensors(tmp_path / "model.bin") == {}
    write(tensor)
    assert "'a" in refusal(lambda: stored_tensors(file))
    write(good, length=3)
    assert "model.safetensors cannot be read" in refusal(lambda: stored_tensors(file))
