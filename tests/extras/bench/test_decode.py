"""The decode benchmark: the numbers it promises, their sums, and the bytes it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from roseplay.extras.bench.decode import STAGES
from roseplay.extras.bench.main import main
from tests.model.families import FAMILIES


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    return tmp_path


def decode(shape: Path, *flags: str) -> dict:
    file = shape / "figures.json"
    given = ["--model", str(shape), "--random-weights", "--threads", "1", "--json", str(file), *flags]
    assert main(["decode", *given]) == 0
    return json.loads(file.read_text())


def test_the_json_has_the_promised_keys(shape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = decode(shape, "--batch-size", "3", "--context", "20", "--max-new-tokens", "16", "--repeat-runs", "2")
    assert (found["batch"], found["context"], found["dtype"]) == (3, 20, "float32")
    assert found["step_ms"]["p50"] <= found["step_ms"]["p95"] <= found["step_ms"]["p99"]
    assert set(found["stages_ms"]) == set(STAGES)
    assert all(took >= 0 for took in found["stages_ms"].values())
    assert 0 <= found["device_ms"] <= found["step_ms"]["p99"] and 0 <= found["replayed"] <= 1
    assert found["output_tokens_per_s"] == pytest.approx(3000 / found["step_ms"]["p50"])
    bandwidth = found["read_bandwidth_gb_s"] * 1e9
    assert found["bandwidth_fraction"] == pytest.approx(
        found["bytes_per_step"] / (found["step_ms"]["p50"] / 1000) / bandwidth
    )
    # 16 tokens an answer: 1 from prefill, 15 from decode steps. The first two are skipped; the last has no next step.
    assert found["steps"] == 2 * 12
    assert f"{found['output_tokens_per_s']:.1f} tokens/s" in capsys.readouterr().out


def test_a_step_reads_the_layers_and_the_output_matrix_but_not_the_embedding_table(shape: Path) -> None:
    attention = 32 * 32 * 2 + 32 * 16 * 2
    layer = attention + 3 * 32 * 64 + 2 * 32
    weights = 4 * (2 * layer + 32 + 96 * 32)
    found = decode(shape, "--batch-size", "2", "--context", "8", "--max-new-tokens", "16")
    assert found["weight_bytes"] == weights
    kv_of_a_token = 2 * 2 * 16 * 4
    assert found["bytes_per_step"] == weights + 2 * (8 + 8) * kv_of_a_token


@pytest.mark.slow
def test_the_engine_may_run_in_a_process(shape: Path) -> None:
    found = decode(shape, "--worker", "process", "--batch-size", "2", "--context", "8", "--max-new-tokens", "8")
    assert found["steps"] == 7 - 2 - 1


def test_a_batch_that_memory_does_not_hold_is_refused(
    shape: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the numbers, before the operating system ends the process."""
    monkeypatch.setattr("roseplay.model.runner.free_memory", lambda: 2**20)
    flags = ["--model", str(shape), "--random-weights", "--batch-size", "64", "--context", "100"]
    assert main(["decode", *flags, "--max-new-tokens", "16"]) == 2
    message = capsys.readouterr().err.strip()
    assert "515 KV blocks need 0.0 GiB of KV cache, but only 0.0 GiB are free" in message and "\n" not in message


def test_too_few_tokens_are_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["decode", "--max-new-tokens", "4"])
    assert exit.value.code == 2
    assert "it is 4: use 8 to" in capsys.readouterr().err


def test_every_cell_is_decoded_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    file, page = tmp_path / "grid.json", tmp_path / "grid.html"
    given = ["--batch-size", "1,3", "--context", "4,20", "--max-new-tokens", "10", "--repeat-runs", "2"]
    given += ["--model", str(tmp_path), "--random-weights", "--threads", "1", "--json", str(file), "--html", str(page)]
    assert main(["decode", *given]) == 0
    cells = json.loads(file.read_text())["cells"]
    assert [(cell["batch"], cell["context"]) for cell in cells] == [(1, 4), (1, 20), (3, 4), (3, 20)]
    for cell in cells:
        assert cell["steps"] > 0 and cell["step_ms"]["p50"] > 0 and cell["prefill_tokens_per_s"] > 0
    assert cells[3]["bytes_per_step"] > cells[2]["bytes_per_step"] > cells[0]["bytes_per_step"]
    told = capsys.readouterr().out
    assert "context 20" in told and told.count("%)") == 4
    drawn = page.read_text()
    assert "context 20" in drawn and 'src="http' not in drawn


def test_a_list_that_is_not_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["decode", "--batch-size", "1,two"])
    assert stopped.value.code == 2 and "not a list of integers" in capsys.readouterr().err
