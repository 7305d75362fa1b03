"""``roseplay lab SCENARIO``: every scenario is run from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roseplay.cli import main
from roseplay.lab import arms
from roseplay.lab.results import parse_result
from roseplay.traffic.scenarios import SCENARIOS
from tests.lab.fake_arms import FakeArms
from tests.play.fake_engine import FakeEngine


@pytest.fixture(autouse=True)
def pretend(monkeypatch: pytest.MonkeyPatch) -> FakeArms:
    fake = FakeArms()
    monkeypatch.setattr(arms, "open_engine", fake)
    return fake


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_both_arms_of_every_scenario_are_played_in_turn(scenario, monkeypatch, capsys, tmp_path: Path) -> None:
    seen: list[tuple[Any, Any]] = []

    def submit(self: FakeEngine, *args: Any, **kwargs: Any) -> Any:
        settings = (self.knobs.to_dict(), {name: getattr(self.config, name) for name in scenario.configs()["before"]})
        if not seen or seen[-1] != settings:
            seen.append(settings)
        return asked(self, *args, **kwargs)

    asked = FakeEngine.submit
    monkeypatch.setattr(FakeEngine, "submit", submit)
    # A scenario's arrivals may be far apart, which other tests check.
    for arrivals in ("fixed_interval", "poisson"):
        monkeypatch.setattr(f"roseplay.traffic.scenario.{arrivals}", lambda count, *_, **__: [0.0] * count)
    file = tmp_path / "figures.json"
    flags = ["--repeats", "2", "--run-limit-s=60", "--save", str(file), "--num-requests", "3", "--max-new-tokens", "4"]
    assert main(["lab", scenario.name, *flags]) == 0
    knobs = [knobs.to_dict() for knobs in scenario.arms().values()]
    before, after = zip(knobs, scenario.configs().values(), strict=True)
    assert seen == [before, after, before, after, before]  # two warm-ups, then before, after, after, before
    document = parse_result(file.read_bytes())
    assert (document["scenario"], document["repeats"]) == (scenario.name, 2)
    assert [arm["knobs"] for arm in document["arms"].values()] == knobs
    assert f"{scenario.title}: " in capsys.readouterr().out


def test_every_prompt_may_have_a_text_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    quick = ["admission", "--prompt", "one two three", "--num-requests", "2", "--max-new-tokens", "3"]
    assert main(["lab", *quick, "--save", str(file)]) == 0
    assert json.loads(file.read_text())["params"]["prompt"] == "one two three"
