"""``roseplay bench grid``: every cell is measured and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roseplay.extras.bench.main import main
from tests.model.families import FAMILIES


def test_every_cell_is_decoded_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    file, page = tmp_path / "grid.json", tmp_path / "grid.html"
    given = ["--batch-sizes", "1,3", "--contexts", "4,20", "--max-new-tokens", "10", "--repeat-runs", "2"]
    given += ["--model", str(tmp_path), "--random-weights", "--threads", "1", "--json", str(file), "--html", str(page)]
    assert main(["grid", *given]) == 0
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
        main(["grid", "--batch-sizes", "1,two"])
    assert stopped.value.code == 2 and "not a list of integers" in capsys.readouterr().err
