from __future__ import annotations

import json
from pathlib import Path

import pytest

import roseplay.engine.client
from roseplay.cli import main
from roseplay.config import EngineConfig
from roseplay.traffic.scenarios import SCENARIOS
from tests.fake_engine import FakeEngine


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_both_arms_of_every_scenario_are_played_in_turn(scenario, monkeypatch, capsys, tmp_path: Path) -> None:
    seen: list[tuple] = []

    class Watched(FakeEngine):
        def submit(self, *args, **kwargs):
            settings = (self.knobs.to_dict(), self.config)
            if not seen or seen[-1] != settings:
                seen.append(settings)
            return super().submit(*args, **kwargs)

    monkeypatch.setattr(roseplay.engine.client, "Engine", Watched)
    # Arrivals of a scenario may lie apart; that they do is tested elsewhere.
    for arrivals in ("fixed_interval", "poisson"):
        monkeypatch.setattr(f"roseplay.traffic.scenario.{arrivals}", lambda count, *_, **__: [0.0] * count)
    file = tmp_path / "figures.json"
    assert main(["bench", "scenario", scenario.name, "--repeat-runs", "2", "--json", str(file)]) == 0
    arms = {arm: knobs.to_dict() for arm, knobs in scenario.arms().items()}
    settings = [(arms[arm], EngineConfig(**config)) for arm, config in scenario.configs().items()]
    assert seen == settings * 3  # one warm-up, two that count
    figures = json.loads(file.read_text())
    assert figures["scenario"] == scenario.name
    assert {arm: figures[arm]["knobs"] for arm in arms} == arms
    assert len(figures["after"]["runs"]) == 2
    out = capsys.readouterr().out
    assert "--- before: " in out
    assert f"--- {scenario.watch.split('_')[0]}" in out


def test_an_unknown_scenario_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "scenario", "magic"])
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert "token-budget" in err
