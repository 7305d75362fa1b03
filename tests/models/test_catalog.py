"""Which models on a machine are listed, and what is known about each without loading it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from roseplay.model.errors import UnsupportedModelError
from roseplay.model.source import find_source
from roseplay.models import catalog
from roseplay.models.catalog import ModelCatalog, Places, Search, describe, given
from roseplay.models.entry import ModelEntry
from tests.gguf_files import write_out
from tests.hub import Hub
from tests.test_structure import modules_after

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}


def write_gguf(file: Path, architecture: str = "llama", **more: Any) -> Path:
    """A file of 4,096 + 64 numbers, without a tokenizer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(1024)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for name, value in more.items():
        writer.add_string(name.replace("__", "."), value)
    stored = gguf.quants.quantize(np.ones((64, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_q.weight", stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    write_out(writer)
    return file


def write_directory(folder: Path, *, weights: bool = True, **config: Any) -> Path:
    """A checkpoint of 12 numbers in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    if weights:
        header = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    return folder


def write_ollama(home: Path, name: str, digest: str = "ab" * 32) -> Path:
    """A model of Ollama: a manifest, and the blob that it names."""
    manifest = home / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return write_gguf(home / "blobs" / f"sha256-{digest}", general__name="Llama 3.2 1B")


def found(places: Places) -> dict[str, ModelEntry]:
    """The models found in these places, by name, without those that are listed on every machine."""
    entries, complete = ModelCatalog(lambda: places).entries()
    assert complete
    return {entry.name: entry for entry in entries if entry.model not in ("tiny-chat", "smollm2")}


def test_what_comes_with_roseplay_is_first() -> None:
    first, second = ModelCatalog(Places).entries()[0]
    assert (first.name, first.model, first.type, first.context) == ("tiny-chat", "tiny-chat", "bfloat16", 2048)
    assert first.parameters == 2_361_408 and first.weight_bytes == 2 * first.parameters and first.refused is None
    assert (second.name, second.model, second.refused) == ("SmolLM2-135M-Instruct", "smollm2", None)


def test_files_of_llama_cpp_and_lm_studio(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_gguf(home / ".cache/llama.cpp/org_some-model-Q8_0.gguf")
    write_gguf(home / ".cache/llama.cpp/mmproj-of-it.gguf", general__type="mmproj")
    write_gguf(home / ".lmstudio/models/org/repo/other.gguf", "qwen3")
    (home / ".lmstudio/models/org/repo/notes.txt").write_text("no model")
    entries = found(Places.usual(home, {}))
    assert set(entries) >= {"org_some-model-Q8_0", "other"} and "mmproj-of-it" not in entries
    entry = entries["org_some-model-Q8_0"]
    assert (entry.source, entry.type, entry.architecture) == ("llama.cpp", "Q8_0", "llama")
    assert (entry.parameters, entry.context) == (4160, 1024)
    assert entry.weight_bytes == entry.needed_bytes(on_gpu=False) == 4096 // 32 * 34 + 64 * 2
    assert entry.needed_bytes(on_gpu=True) == 4160 * 2
    assert entry.size == Path(entry.model).stat().st_size
    assert entries["other"].source == "LM Studio" and entries["other"].architecture == "qwen3"
    moved = Places.usual(home, {"LLAMA_CACHE": str(tmp_path / "elsewhere"), "OLLAMA_MODELS": str(tmp_path)})
    assert "org_some-model-Q8_0" not in found(moved)


def test_ollamas_manifests_name_its_models(tmp_path: Path) -> None:
    blob = write_ollama(tmp_path, "registry.ollama.ai/library/llama3.2/1b")
    write_ollama(tmp_path, "registry.ollama.ai/me/mine/latest", "cd" * 32)
    write_ollama(tmp_path, "hf.co/org/repo/Q8_0", "ef" * 32)
    gone = write_ollama(tmp_path, "registry.ollama.ai/library/gone/1b", "01" * 32)
    gone.unlink()
    hostile = tmp_path / "manifests/registry.ollama.ai/library/hostile/1b"
    hostile.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}
    hostile.write_text(json.dumps({"layers": [layer]}))
    (hostile.parent / "text").write_text("no manifest")
    entries = found(Places(ollama=[tmp_path]))
    assert set(entries) == {"llama3.2:1b", "me/mine:latest", "hf.co/org/repo:Q8_0"}
    assert entries["llama3.2:1b"].model == str(blob) and entries["llama3.2:1b"].source == "Ollama"
    assert find_source(str(blob)).name == "Llama 3.2 1B"  # the API uses this name


def test_the_hubs_cache_without_what_is_no_decoder(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    write_directory(hub.add("org/good"))
    write_directory(hub.add("org/classifier"), architectures=["BertForTokenClassification"])
    write_directory(hub.add("org/translator"), is_encoder_decoder=True)
    write_directory(hub.add("org/listed-only"), weights=False)
    write_directory(hub.add("org/awq"), quantization_config={"quant_method": "awq"})
    write_gguf(hub.add("org/files") / "model-Q8_0.gguf")
    entries = found(Places(hub=hub.path))
    assert set(entries) == {"org/good", "org/listed-only", "org/awq", "org/files:model-Q8_0.gguf"}
    good = entries["org/good"]
    assert (good.model, good.type, good.parameters, good.context) == ("org/good", "bfloat16", 12, 512)
    assert good.refused is None
    assert entries["org/listed-only"].refused == "its weights are not on this machine"
    assert "quantized by awq" in (entries["org/awq"].refused or "")


def test_why_a_file_is_refused_is_known_without_loading_it(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "header.gguf").write_bytes(whole[:60])
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_text("no model at all")
    write_gguf(tmp_path / "split-00001-of-00002.gguf")
    entries = found(Places(llama_cpp=[tmp_path]))
    assert entries["whole"].refused is None
    for name, reason in {"cut": "truncated", "header": "truncated", "text": "not a GGUF", "split": "missing"}.items():
        assert reason in (entries[name].refused or ""), name
    assert entries["empty"].refused


def test_a_split_model_is_one_entry(tmp_path: Path) -> None:
    for part in (1, 2):
        write_gguf(tmp_path / f"big-0000{part}-of-00002.gguf")
    entries = found(Places(llama_cpp=[tmp_path]))
    assert list(entries) == ["big"]
    assert entries["big"].parameters == 2 * 4160 and entries["big"].model.endswith("big-00001-of-00002.gguf")


def test_folders_are_searched_to_a_depth_and_links_to_them_are_not_followed(tmp_path: Path) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    folder = place
    for depth in range(catalog.DEPTH + 2):
        write_gguf(folder / f"at-{depth}.gguf")
        folder /= "folder"
    write_gguf(other / "behind-a-link.gguf")
    (place / "link").symlink_to(other, target_is_directory=True)
    (place / "linked.gguf").symlink_to(other / "behind-a-link.gguf")
    names = {f"at-{depth}" for depth in range(catalog.DEPTH + 1)}
    assert set(found(Places(llama_cpp=[place]))) == names | {"linked"}


@pytest.mark.parametrize("limit", [{"most_seen": 10}, {"most_models": 10}, {"within_s": 0.0}], ids=str)
def test_a_search_has_limits(limit: dict[str, Any], tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "0.gguf").read_bytes()
    for number in range(1, 30):
        (tmp_path / f"{number}.gguf").write_bytes(content)
    assert len(found(Places(llama_cpp=[tmp_path]))) == 30
    search = Search(Places(llama_cpp=[tmp_path]), **limit)
    search.run()
    assert not search.complete and len(search.entries) <= 10


def test_a_bad_model_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path / "hub")
    for name in ("a", "z"):
        write_gguf(tmp_path / "files" / f"{name}.gguf")
        write_directory(hub.add(f"org/{name}"))
        write_ollama(tmp_path / "ollama", f"registry.ollama.ai/library/{name}/1b", ("ab" if name == "a" else "cd") * 32)
    good = (tmp_path / "files" / "a.gguf").read_bytes()
    (tmp_path / "files" / "m-00001-of-00000.gguf").write_bytes(good)
    (tmp_path / "files" / "text.gguf").write_bytes(good.replace(b"general.file_type\4", b"general.alignment\4"))
    write_directory(hub.add("org/m"), rope_scaling={"factor": float("inf")})
    write_ollama(tmp_path / "ollama", "registry.ollama.ai/library/m/1b", "ef" * 32).write_bytes(good[:40])
    places = Places(hub.path, [tmp_path / "files"], ollama=[tmp_path / "ollama"])
    entries = found(places)
    assert set(entries) == {"a", "m-00001-of-00000", "text", "z", "org/a", "org/m", "org/z", "a:1b", "m:1b", "z:1b"}
    assert "general.alignment" in (entries["text"].refused or "")
    assert "rope_scaling.factor" in (entries["org/m"].refused or "")

    of_gguf = catalog.of_gguf

    def broken(file: Path, **about: Any) -> ModelEntry | None:
        if file.name.startswith("m-"):
            raise IndexError("list index out of range")
        return of_gguf(file, **about)

    monkeypatch.setattr(catalog, "of_gguf", broken)
    search = Search(places)
    search.run()
    assert {"a", "z"} <= {entry.name for entry in search.entries} and not search.complete


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", b"[" * 100_000, "config.json cannot be read: recursion limit"),
        ("config.json", {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 10**400}}, "rope_scaling.factor"),
        ("config.json", {**LLAMA, "max_position_embeddings": "512"}, "max_position_embeddings"),
        ("model.safetensors.index.json", {"weight_map": ["model.safetensors"]}, "weight_map"),
        (
            "model.safetensors",
            b"\x40" + bytes(7) + b'{"a": {"dtype": "BF16", "shape": [' + b"9" * 400,
            "cannot be read",
        ),
    ],
)
def test_why_a_directory_is_refused_is_one_line(name: str, content: Any, reason: str, tmp_path: Path) -> None:
    folder = write_directory(tmp_path / "model")
    (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    refused = describe(str(folder)).refused or ""
    assert reason in refused and "\n" not in refused


def test_files_of_weights_that_the_index_names_have_to_be_there(tmp_path: Path) -> None:
    folder = write_directory(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert describe(str(folder)).refused is None
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}))
    assert "1 of its 2 files of weights are missing, other" in (describe(str(folder)).refused or "")


@pytest.mark.parametrize(("fresh_s", "searches"), [(60.0, 1), (-1.0, 2)])
def test_a_search_is_used_again_while_it_is_fresh(fresh_s: float, searches: int) -> None:
    searched: list[Places] = []
    listed = ModelCatalog(lambda: searched.append(Places()) or searched[-1], fresh_s)
    assert listed.entries() == listed.entries() and len(searched) == searches


@pytest.mark.parametrize(("kind", "context"), [("dynamic", 1280), ("linear", 512)])
def test_dynamic_embeddings_extend_the_context(kind: str, context: int, tmp_path: Path) -> None:
    assert describe(str(write_directory(tmp_path, rope_scaling={"type": kind, "factor": 2.5}))).context == context


def test_one_model_by_name_path_or_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf")
    folder = write_directory(tmp_path / "checkpoint")
    write_gguf(tmp_path / "folder" / "inside.gguf")
    for path, name in ((file, "model"), (folder, "checkpoint"), (tmp_path / "folder", "inside")):
        entry = describe(str(path))
        assert (entry.name, entry.model, entry.refused) == (name, str(path), None)
    encoder = write_directory(tmp_path / "encoder", architectures=["BertModel"])
    assert "not a decoder" in (describe(str(encoder)).refused or "")
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "empty").mkdir()
    long, nobodys = "x" * 300 + ".gguf", "~nosuchuser/x"
    for wrong in (tmp_path / "notes.txt", tmp_path / "empty", tmp_path / "nowhere", "two words", long, nobodys):
        with pytest.raises(UnsupportedModelError):
            describe(str(wrong))
    assert (describe("org/not-here").source, describe("org/not-here").refused) == ("download", None)


def test_a_name_that_no_library_accepts_is_an_entry_that_is_refused() -> None:
    names = ["~nosuchuser/x", "x" * 300, "a--b/c", "x\0y"]
    entries = given(names, ModelCatalog(Places))
    assert [entry.model for entry in entries] == names and all(entry.refused for entry in entries)


def test_listing_loads_no_torch() -> None:
    loaded = modules_after(
        "from roseplay.models.catalog import ModelCatalog\nassert ModelCatalog().entries()[0][0].name == 'tiny-chat'"
    )
    assert not loaded & {"torch", "numba", "gradio"}
