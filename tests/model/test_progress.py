"""What loading a model reports about its stages: bytes of weights, downloads, and preparing the first steps."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tqdm.contrib.concurrent import thread_map

from roseplay.config import EngineConfig
from roseplay.core.progress import STAGES, Progress
from roseplay.model import loader, source, weights_progress
from roseplay.model.downloads import download_bar
from roseplay.model.loader import load_model
from roseplay.model.runner import ModelRunner
from roseplay.model.source import Source
from roseplay.model.weights_progress import bytes_per_number, checkpoint_files, counting
from tests.hub import Hub
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import reporter_of_all


def started(model: str, **settings: Any) -> list[Progress]:
    """Everything that a model runner reports until it is ready."""
    sent: list[Progress] = []
    reporter, config = reporter_of_all(sent), EngineConfig(device="cpu", num_blocks=8, **settings)
    ModelRunner(load_model(model, config, reporter), config, reporter).close()
    return sent


def of(stage: str, sent: list[Progress]) -> list[Progress]:
    return [progress for progress in sent if progress.stage == stage]


def test_a_start_reports_its_stages_in_order_and_each_to_its_end(checkpoint: Path) -> None:
    sent = started(str(checkpoint), dtype="float32")
    stages = [progress.stage for progress in sent]
    assert [stage for stage, before in zip(stages, ["", *stages], strict=False) if stage != before] == list(STAGES[1:])
    for before, after in pairwise(sent):
        assert before.stage != after.stage or before.done <= after.done
    for stage in ("download", "weights", "kernels"):
        last = of(stage, sent)[-1]
        assert last.done == pytest.approx(last.total, rel=0.2), stage  # the file also has a header
    assert of("download", sent)[-1].note == "from disk"
    assert of("kernels", sent)[-1].total > 3  # counts its layers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_counted_in_the_bytes_of_their_files(checkpoint: Path, dtype: str) -> None:
    weights = of("weights", started(str(checkpoint), dtype=dtype))
    numbers = sum(weight.numel() for weight in tiny_model(FAMILIES["llama"]()).parameters())
    assert {progress.total for progress in weights} == {(checkpoint / "model.safetensors").stat().st_size}
    assert weights[-1].done == pytest.approx(2 * numbers, rel=0.01)  # bfloat16 in the file, whatever the dtype
    assert len(weights) > 10  # weight by weight, not only at the end


def test_a_checkpoint_in_several_files_has_the_size_of_all(checkpoint: Path, tmp_path: Path) -> None:
    tf.AutoModelForCausalLM.from_pretrained(checkpoint).save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert of("weights", started(str(tmp_path)))[-1].total == sum(file.stat().st_size for file in files)


def test_random_weights_are_counted_as_they_are_made(tmp_path: Path) -> None:
    FAMILIES["gpt2"]().save_pretrained(tmp_path)
    weights = of("weights", started(str(tmp_path), random_weights=True))
    made = sum(weight.nbytes for weight in tiny_model(FAMILIES["gpt2"]()).parameters())
    assert weights[-1] == Progress("weights", made, made, "bytes", "random")
    assert len(weights) > 10


def test_files_of_a_model_in_the_hubs_cache_are_found(checkpoint: Path, hub: Hub) -> None:
    snapshot = hub.add("somebody/llama")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(checkpoint / name)
    assert checkpoint_files(Source("", "somebody/llama", local=False)) == [snapshot / "model.safetensors"]
    assert checkpoint_files(Source("", "somebody/else", local=False)) == []


def test_a_number_takes_what_the_header_says(checkpoint: Path, tmp_path: Path) -> None:
    assert bytes_per_number([checkpoint / "model.safetensors"], 4) == 2
    assert bytes_per_number([tmp_path / "pytorch_model.bin"], 4) == 4
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "2.bin", "b": "1.bin"}}))
    assert checkpoint_files(Source("", str(tmp_path), local=True)) == [tmp_path / "1.bin", tmp_path / "2.bin"]


def test_only_weights_of_this_thread_are_counted_and_none_twice() -> None:
    put: list[torch.Tensor] = []
    with counting(put.append):
        layer = torch.nn.Linear(3, 2, bias=False)
        other = threading.Thread(target=torch.nn.Linear, args=(5, 5))
        other.start()
        other.join()
        torch.nn.Linear(4, 4, device="meta")
        tied = torch.nn.Linear(3, 2, bias=False)
        tied.weight = layer.weight
    torch.nn.Linear(7, 7)
    assert [tuple(weight.shape) for weight in put] == [(2, 3), (2, 3)]  # the tied layer's own, before tying


class TestDownload:
    """The Hugging Face client creates progress bars of the class that it is given."""

    def test_one_file(self) -> None:
        sent: list[Progress] = []
        reporter = reporter_of_all(sent)
        reporter.begin("download", unit="bytes")
        with download_bar(reporter)(unit="B", unit_scale=True, total=30, initial=0, desc="model.safetensors") as bar:
            bar.update(10)
            bar.update(20)
        assert [(progress.done, progress.total) for progress in sent] == [(0, None), (10, 30), (30, 30)]

    def test_several_files_in_several_threads(self, capfd: pytest.CaptureFixture[str]) -> None:
        sent: list[Progress] = []
        reporter = reporter_of_all(sent)
        reporter.begin("download", unit="bytes")
        bar_class = download_bar(reporter)
        transferred, written = (bar_class(unit="B", total=0, initial=0, desc=what) for what in ("network", "disk"))

        def fetch(size: int) -> None:
            written.total += size
            transferred.update(size // 2)
            written.update(size)

        thread_map(fetch, [100, 200, 300], tqdm_class=bar_class, desc="3 files", max_workers=2)
        reporter.end()
        assert (sent[-1].done, sent[-1].total) == (600, 600)
        assert capfd.readouterr() == ("", "")

    def test_a_model_of_the_hub(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client is simulated: a directory stands in for what it downloads."""
        real_config, real_model = tf.AutoConfig.from_pretrained, tf.AutoModelForCausalLM.from_pretrained

        def fetched(name: str, *, local_files_only: bool, tqdm_class: Any, **settings: Any) -> Any:
            if local_files_only:
                raise OSError("not in the cache")
            with tqdm_class(unit="B", total=4000, desc="model.safetensors") as bar:
                for _ in range(4):
                    bar.update(1000)
            return real_model(checkpoint, **settings)

        monkeypatch.setattr(source, "hub_answers", lambda: True)
        monkeypatch.setattr(loader.AutoConfig, "from_pretrained", lambda name, **_: real_config(checkpoint))
        monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", fetched)
        monkeypatch.setattr(weights_progress, "checkpoint_files", lambda *_: [checkpoint / "model.safetensors"])
        sent = started("somebody/llama")
        assert [progress.done for progress in of("download", sent)] == [0, 1000, 2000, 3000, 4000]
        assert of("weights", sent)[0].total == (checkpoint / "model.safetensors").stat().st_size
