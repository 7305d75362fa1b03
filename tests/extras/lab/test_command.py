"""``roseplay lab``: what its flags and files request, and how it refuses bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roseplay.config import EngineConfig
from roseplay.core.info import FreeMemory
from roseplay.extras.lab.arms import ClosedEngine
from roseplay.extras.lab.command import main
from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.results import experiment_of, parse_result
from roseplay.traffic.arrivals import poisson
from roseplay.traffic.scenarios import SCENARIOS
from tests.extras.lab.fake_arms import QUICK, FakeArms, MadeUpArm, MadeUpArms
from tests.extras.lab.test_flags import body

RESULT = Path(__file__).with_name("result.json")


def test_a_change_of_an_arm_goes_over_what_the_scenario_sets() -> None:
    given = body(
        "kv-pressure", "--b", "num-blocks=300", "--b", "prefix_cache=ON", "--b", "prefill_max_tokens = unlimited"
    )
    assert "a" not in given
    arm = parse_experiment(given).arms["B"]
    assert arm.config == {"block_size": 16, "num_blocks": 300}
    assert (arm.knobs.prefix_cache, arm.knobs.same_step_sharing, arm.knobs.prefill_max_tokens) == (True, False, None)


def test_none_is_a_word_where_a_setting_has_it() -> None:
    given = body("poisson", "--a", "quantization=none", "--a", "prefill_max_tokens=none", "--b", "quantization=q8")
    arms = parse_experiment(given).arms
    assert (arms["A"].config["quantization"], arms["B"].config["quantization"]) == ("none", "q8")
    assert arms["A"].knobs.prefill_max_tokens is None


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    saved = {"scenario": "poisson", "seed": 7, "repeats": 3, "params": {"num_requests": 5, "rate_per_s": 9}}
    spec.write_text(json.dumps({**saved, "a": {"knobs": {"max_batch_size": 2}}}))
    given = body(
        "--spec", str(spec), "--repeats", "2", "--num-requests", "4", "--limit-itl-ms", "20", "--a", "block_size=8"
    )
    assert given == {
        **saved,
        "repeats": 2,
        "params": {"num_requests": 4, "rate_per_s": 9},
        "limits": {"itl_ms": 20},
        "a": {"knobs": {"max_batch_size": 2}, "config": {"block_size": 8}},
    }


def test_a_result_can_be_run_again() -> None:
    document = parse_result(RESULT.read_bytes())
    given = body("--spec", str(RESULT))
    assert given == experiment_of(document)
    experiment = parse_experiment(given)
    assert experiment.scenario.name == document["scenario"]
    assert document["params"].items() <= experiment.scenario.params().items()
    assert (experiment.seed, experiment.repeats) == (document["seed"], document["repeats"])
    for arm, asked in experiment.arms.items():
        assert asked.knobs.to_dict() == document["arms"][arm]["knobs"]


def test_only_engine_settings_that_were_chosen_are_run_again() -> None:
    document = parse_result(RESULT.read_bytes())
    document["scenario"] = "kv-pressure"
    for arm, blocks, memory in (("A", 65, None), ("B", 257, 1 << 20)):
        document["arms"][arm]["config"].update(block_size=16, num_blocks=blocks, kv_cache_memory=memory)
    again = experiment_of(document)
    assert again["a"]["config"] == {"block_size": 16, "num_blocks": 65, "kv_cache_memory": None}
    assert again["b"]["config"] == {"block_size": 16, "kv_cache_memory": 1 << 20}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "name a scenario"),
        (["polka"], "there is no scenario 'polka'"),
        (["admission", "--a", "colour=red"], "not a setting of an arm"),
        (["admission", "--a", "block_size=red"], "arm A: block_size is 'red'"),
        (["admission", "--b", "slow_motion=4"], "slow motion"),
        (["admission", "--rate-per-s", "4"], "no parameter rate_per_s"),
        (["admission", "--repeats", "0"], "repeats should be greater"),
        (["admission", "--num-blocks", "0"], "num_blocks is 0"),
        (["--spec", "nowhere.json"], "nowhere.json: No such file"),
        (["--spec", __file__], "is not JSON"),
        (["admission", "--report", "no/such/folder/report.html"], "no such directory"),
        (["admission", "--save", "no/such/folder/result.json"], "no such directory"),
        (["admission", "--find", "batch"], "find, itl_p99_ms is missing"),
        (["admission", "--sweep", "batch", "--from", "1", "--to", "2", "--b", "max_batch_size=2"], "leave it out of B"),
        (["admission", "--csv"], "--csv is for --sweep and --find"),
        (["admission", "--prompt", ""], "prompt should have 1 or more characters"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    said = capsys.readouterr().err
    assert said.startswith("roseplay lab: ")
    assert words in said
    assert len(said.splitlines()) == 1


def test_the_summary_is_printed_in_sentences_or_the_result_as_json(tmp_path: Path, capsys) -> None:
    arms = MadeUpArms()
    quick = ["admission", "--model", "tiny-chat", "--num-requests", "2", "--max-new-tokens", "3"]
    report, saved = tmp_path / "report.html", tmp_path / "result.json"
    assert main([*quick, "--report", str(report), "--save", str(saved)], arms) == 0
    printed = capsys.readouterr()
    assert (
        "Admission: fake-chat on cpu, float32, 1 run an arm\n  A: Admission blocking\n  B: Admission queued"
        in printed.out
    )
    assert "One run each: repeat it to see the spread." in printed.out
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == ["run 1 of 2, A", "run 2 of 2, B"]
    assert report.read_text().startswith("<!doctype html>")
    assert parse_result(saved.read_bytes())["scenario"] == "admission"
    assert main([*quick, "--json"], arms) == 0
    document = parse_result(capsys.readouterr().out.encode())
    assert [run["arm"] for run in document["runs"]] == ["A", "B"]
    assert all(line in printed.out for line in ("Throughput, tok/s", "Preemptions"))
    assert arms.all_closed


def test_a_prompt_of_ones_own_replaces_the_questions_and_is_run_again(tmp_path: Path) -> None:
    saved = tmp_path / "result.json"
    quick = ["dedup", "--num-requests", "2", "--max-new-tokens", "3"]
    assert main([*quick, "--prompt", "one two three", "--save", str(saved)], MadeUpArms()) == 0
    document = parse_result(saved.read_bytes())
    assert {request["prompt_tokens"] for run in document["runs"] for request in run["requests"]} == {3 * 16}
    assert body("--spec", str(saved))["params"]["prompt"] == "one two three"


def test_each_run_starts_with_an_empty_cache_unless_told_to_keep_it() -> None:
    for flags, keeps in (([], False), (["--keep-cache"], True)):
        kept: list[bool] = []
        arms = MadeUpArms(lambda arm, kept=kept: kept.append(arm.keeps_cache) or {})
        assert main(["admission", "--num-requests", "2", "--max-new-tokens", "3", *flags], arms) == 0
        assert kept == [keeps] * 2


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_arms_of_every_scenario_are_measured_in_turn(name: str, tmp_path: Path, capsys) -> None:
    scenario, seen, saved = SCENARIOS[name], [], tmp_path / "result.json"

    def figures(arm: MadeUpArm) -> dict[str, float]:
        seen.append((arm.knobs, {name: getattr(arm.config, name) for name in scenario.settings("before")["config"]}))
        return {}

    flags = ["--repeats", "2", "--save", str(saved), "--num-requests", "3", "--max-new-tokens", "4"]
    assert main([name, *flags], MadeUpArms(figures)) == 0
    before, after = ((knobs, scenario.settings(side)["config"]) for side, knobs in scenario.arms().items())
    assert seen == [before, after, after, before]
    document = parse_result(saved.read_bytes())
    assert (document["scenario"], document["repeats"]) == (name, 2)
    assert [arm["knobs"] for arm in document["arms"].values()] == [knobs.to_dict() for knobs, _ in (before, after)]
    assert f"{scenario.title}: " in capsys.readouterr().out


def test_a_run_that_fails_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    arms = FakeArms()
    arms.step_s = 5.0
    assert main(["admission", "--num-requests", "2", "--max-new-tokens", "3", "--run-limit-s", "0.2"], arms) == 1
    assert "a run took longer than 0.2 s" in capsys.readouterr().err
    assert arms.all_closed


def test_arms_may_have_the_memory_of_the_engine_that_was_asked() -> None:
    arms = MadeUpArms()
    engine = ClosedEngine.of("fake-chat", EngineConfig(), open_with=arms)
    pool = engine.info.num_blocks * engine.info.block_size * engine.info.kv_bytes_per_token
    assert engine.free_memory() == FreeMemory(host=64 * 2**30 + pool)
    assert arms.all_closed


def test_traffic_of_ones_own_takes_the_place_of_a_scenarios_and_is_run_again(tmp_path: Path, capsys) -> None:
    file, saved = tmp_path / "day.csv", tmp_path / "result.json"
    file.write_text("arrival_s,prompt,prompt_tokens,answer_tokens\n5,,7,3\n5.01,one two three,,4\n5.02,,9,2\n")
    assert main(["--traffic", str(file), "--b", "max_batch_size=2", "--save", str(saved)], MadeUpArms()) == 0
    assert capsys.readouterr().out.startswith("Own traffic: day.csv: fake-chat")
    document = parse_result(saved.read_bytes())
    for run in document["runs"]:
        sent = [(r["prompt_tokens"], r["completion_tokens"]) for r in run["requests"]]
        assert sent == [(7, 3), (3, 4), (9, 2)]
        assert [request["intended_arrival_ms"] for request in run["requests"]] == [0, 10, 20]
    again = parse_experiment(body("--spec", str(saved)))
    assert [request.row() for request in again.traffic.requests] == document["traffic"]["requests"]
    under = body("token-budget", "--traffic", str(file), "--rate-per-s", "100", "--seed", "4")
    experiment = parse_experiment(under)
    assert [arm.knobs.prefill_max_tokens for arm in experiment.arms.values()] == [None, 64]
    assert [request.arrival_s for request in experiment.traffic.requests] == pytest.approx(
        poisson(3, 100, seed=4), abs=1e-6
    )
    assert main(["--traffic", str(file), "--num-requests", "3"]) == 2
    assert "has no num_requests: the file says what is sent" in capsys.readouterr().err
    file.write_text(file.read_text() + "6,,many,1\n")
    assert main(["--traffic", str(file)]) == 2
    assert "day.csv: line 5, prompt_tokens should be a valid integer, not 'many'" in capsys.readouterr().err


def test_a_name_is_written_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, saved = tmp_path / "spec.json", tmp_path / "result.json"
    spec.write_text(json.dumps({"scenario": "admission", "params": QUICK, "name": "für 🌹"}))
    assert main(["--spec", str(spec), "--json", "--save", str(saved)], MadeUpArms()) == 0
    for text in (capsys.readouterr().out, saved.read_text(encoding="utf-8")):
        assert '"für 🌹"' in text and text.endswith("}\n")


@pytest.mark.parametrize("flags", [["--run-as", "h100"], ["--a", "run_as=h100"], ["--url", "http://127.0.0.1:9"]])
def test_cpu_time_is_refused_where_this_machine_s_cpu_does_not_compute(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["poisson", *flags, "--cpu-time"]) == 2
    assert "--cpu-time is for engines on this machine's CPU" in capsys.readouterr().err
