"""How ``roseplay lab`` interprets flags for servers, files and single settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roseplay.extras.lab.flags import parser
from roseplay.extras.lab.from_flags import experiment_body, with_arms
from roseplay.traffic.scenarios import SCENARIOS


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROSEPLAY_URL_API_KEY", "ROSEPLAY_URL_B_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def body(*flags: str) -> dict[str, Any]:
    options = parser().parse_args(flags)
    return with_arms(experiment_body(options), options)


def test_flags_are_fields_of_the_experiment() -> None:
    found = body("poisson", "--max-spread", "7.5", "--length", "4")
    assert found == {"scenario": "poisson", "max_spread_pct": 7.5, "length": 4}


def test_one_server_has_the_scenarios_knobs_in_both_arms() -> None:
    found = body("token-budget", "--url", "http://a")
    arms = SCENARIOS["token-budget"].arms()
    for arm, side in (("a", "before"), ("b", "after")):
        assert found[arm]["config"] == {"url": "http://a"}
        assert found[arm]["knobs"]["prefill_max_tokens"] == arms[side].prefill_max_tokens
    changed = body("token-budget", "--url", "http://a", "--b", "max_batch_size=3")
    assert changed["b"]["knobs"]["max_batch_size"] == 3
    assert changed["a"] == found["a"]


def test_two_servers_keep_their_own_settings() -> None:
    found = body("token-budget", "--url", "http://a", "--url-b", "http://b", "--b", "max_batch_size=3")
    assert found["a"] == {"knobs": {}, "config": {"url": "http://a"}}
    assert found["b"]["config"]["url"] == "http://b"
    assert found["b"]["knobs"]["max_batch_size"] == 3


def test_a_sweep_has_one_arm() -> None:
    sweep = ("--sweep", "batch", "--from", "1", "--to", "8")
    found = body("poisson", *sweep, "--url", "http://a")
    assert found["a"] == {"knobs": {}, "config": {"url": "http://a"}}
    assert "b" not in found
    assert found["sweep"] == {"setting": "max_batch_size", "from": 1, "to": 8}
    with pytest.raises(ValueError, match="measures one server"):
        body("poisson", *sweep, "--url", "http://a", "--url-b", "http://b")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--points 3", "--points is for --sweep"),
        ("--itl-p99 3", "--itl-p99 is for --find"),
        ("--from 3", "--from is for --sweep or --find"),
        ("--sweep batch --from 1 --to 8 --ttft-p95 3", "--ttft-p95 is for --find"),
        ("--find batch --itl-p99 3 --ttft-p95 3 --seconds 3", "--seconds is for --sweep"),
        ("--sweep batch --find batch", "use either --sweep or --find"),
        ("--find batch --itl-p99 3 --ttft-p95 3 --b max_batch_size=2", "--b is for a comparison or a sweep"),
        ("--b max_batch_size", "write NAME=VALUE, NAME being one of "),
        ("--b =3", "write NAME=VALUE"),
    ],
)
def test_flags_that_do_not_go_together(flags: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        body("poisson", *flags.split())


def test_traffic_from_a_file_has_its_name_and_its_rate(tmp_path: Path) -> None:
    file = tmp_path / f"{'x' * 90}.csv"
    file.write_text("arrival_s,prompt_tokens,answer_tokens\n0,4,2\n1,4,2\n")
    found = body("--traffic", str(file), "--num-requests", "3", "--rate-per-s", "50", "--seed", "2")
    assert found["traffic"]["name"] == "x" * 80
    assert 0 < found["traffic"]["requests"][1][0] < 1
    assert found["params"] == {"num_requests": 3}  # refused later, since the rate belongs to the traffic
    with pytest.raises(ValueError, match="^rate_per_s should be"):
        body("--traffic", str(file), "--rate-per-s", "0")
    file.write_text("nothing")
    with pytest.raises(ValueError, match=r"x\.csv: "):
        body("--traffic", str(file))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ('{"a": {"knobs": 1, "knobs": 2}}', "spec.json is ambiguous, 'knobs' occurs twice in one object: keep one"),
        ("[]", "is not an experiment: write a JSON object"),
        (json.dumps({"roseplay_lab": 2, "kind": "sweep"}), "only a comparison can be repeated"),
        (json.dumps({"roseplay_lab": 1}), "not a result of the lab"),
        (json.dumps({"scenario": 5}), "scenario should be a valid string"),
        (json.dumps({"scenario": "admission", "params": 5}), "params must be a JSON object"),
        (json.dumps({"scenario": "admission", "a": []}), "a must be a JSON object"),
        (json.dumps({"scenario": "admission", "limits": {"ttft_ms": "x"}}), "limits, ttft_ms should be"),
        (json.dumps({"scenario": "admission", "x": 1}), "x is not known"),
    ],
)
def test_files_that_are_no_experiment(content: str, says: str, tmp_path: Path) -> None:
    """The flags change parts of the experiment, whatever the file has in their place."""
    spec = tmp_path / "spec.json"
    spec.write_text(content)
    with pytest.raises(ValueError, match=says):
        body("--spec", str(spec), "--num-requests", "2", "--limit-itl-ms", "3", "--a", "max_batch_size=2")
