"""What the measurement of the page's cost relies on: a polling tab without a browser, and the two arms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roseplay.config import SamplingParams
from roseplay.extras.bench.main import main
from roseplay.extras.bench.served import PollingTab
from tests.play.conftest import serving
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until


def test_a_polling_tab_gets_every_frame_once() -> None:
    engine = FakeEngine(run=True, step_s=0.02)
    with serving(engine) as address:
        tab = PollingTab(int(address.rsplit(":", 1)[1]), "a-tab-of-mine")
        try:
            stream = engine.submit([1] * 8, SamplingParams(max_new_tokens=40))
            stream.result(timeout=20)
            wait_until(lambda: any(e[1] == "finished" for frame in tab.frames() for e in frame["requests"]))
        finally:
            tab.close()
    frames = tab.frames()
    assert [frame["seq"] for frame in frames] == list(range(frames[0]["seq"], frames[-1]["seq"] + 1))
    assert sum(len(frame["tokens"]) for frame in frames) == 40
    engine.close()


@pytest.mark.slow
def test_both_arms_run_the_same_lengths_and_the_ratio_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.json"
    flags = ["--lanes", "2", "--others", "1", "--max-new-tokens", "12", "--num-blocks", "64", "--warmup-runs", "0"]
    assert main(["page", *flags, "--threads", "1", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert len(document["prompt_tokens"]) == 3
    assert all(length > 5 for length in document["prompt_tokens"])
    for arm in ("page", "headless"):
        assert 0 < document[arm]["p50"] <= document[arm]["p99"]
    ratio = document["ratio_p50"]
    assert ratio["min"] == pytest.approx(document["page"]["p50"] / document["headless"]["p50"])
    assert f"{ratio['median']:.3f}" in capsys.readouterr().out
