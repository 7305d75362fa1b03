"""The lab's thread: however it ends, it leaves no engine behind and the live engine running."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineError, EngineStartError
from roseplay.extras.lab.job import Job
from roseplay.extras.lab.lab import LabBusyError
from roseplay.extras.lab.measuring import PlayedArm, RunError, RunTerms
from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.progress import RunProgress
from roseplay.traffic.driver import Outcome
from roseplay.traffic.workload import Arrival
from tests.extras.lab.fake_arms import QUICK, FakeArms, MadeUpArm, MadeUpArms, ended, fake_lab, ran
from tests.extras.lab.findings import has
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

BODY = {"scenario": "token-budget", "repeats": 2, "seed": 3, "params": QUICK}
LONG = {"scenario": "token-budget", "params": {"num_requests": 2, "max_new_tokens": 512}}


def test_both_arms_are_played_in_turn_and_the_live_engine_is_paused_meanwhile(engine: FakeEngine) -> None:
    seen: list[Any] = []
    arms = FakeArms(lambda config, cancelled: seen.append((engine.paused, config.worker)))
    lab = fake_lab(engine, arms)
    document, told = ran({**BODY, "name": "first"}, lab=lab)
    assert (told["state"], told["error"], told["left_s"]) == ("done", None, None)
    assert seen == [(True, "process")]  # one engine for both, since only knobs differ
    assert not engine.paused
    assert arms.all_closed
    assert [(run["label"], run["repeat"], run["done"], run["total"], run["state"]) for run in told["progress"]] == [
        ("A", 1, 3, 3, "done"), ("B", 1, 3, 3, "done"), ("B", 2, 3, 3, "done"), ("A", 2, 3, 3, "done"),
    ]  # fmt: skip
    assert (document["name"], document["seed"], document["order"]) == ("first", 3, ["A", "B", "B", "A"])
    assert document["params"] == {**QUICK, "rate_per_s": 50.0}
    assert [(run["arm"], run["repeat"]) for run in document["runs"]] == [("A", 1), ("B", 1), ("B", 2), ("A", 2)]
    assert document["arms"]["A"]["differs"] == ["prefill_max_tokens"]
    assert document["arms"]["B"]["label"] == "Prefill budget 64"
    assert document["summary"]["same_tokens"]
    assert not lab.running
    for run in document["runs"]:
        prompts = [request["prompt_tokens"] for request in run["requests"]]
        assert sum(step[2] for step in run["steps"]) == sum(prompts)  # including the last step, but no warm-up
        assert sum(step[3] for step in run["steps"]) == 3 * 3
        assert len(run["itl_ms"]) == 3 * 3
        assert run["requests"][0]["arrival_ms"] == 0
        assert all(a[1] <= b[0] + 1 for a, b in zip(run["steps"], run["steps"][1:], strict=False))
        assert all(request["reason"] == "length" for request in run["requests"])
        last = run["requests"][-1]
        assert run["seconds"] == pytest.approx((last["arrival_ms"] + last["e2e_ms"]) / 1000, abs=0.01)


def test_one_experiment_at_a_time_and_none_once_the_server_is_closed(engine: FakeEngine) -> None:
    arms = FakeArms()
    lab = fake_lab(engine, arms)
    job = lab.start(LONG)
    with pytest.raises(LabBusyError, match="running already"):
        lab.start(BODY)
    assert lab.stop()
    assert ended(job)["state"] == "stopped"
    assert not lab.stop()
    assert ended(lab.start(BODY))["state"] == "done"
    lab.start(LONG)
    lab.close()
    assert not lab.running
    assert arms.all_closed
    lab.close()


def test_a_bad_experiment_starts_nothing(engine: FakeEngine) -> None:
    arms = MadeUpArms()
    lab = fake_lab(engine, arms)
    with pytest.raises(ValueError, match="no scenario"):
        lab.start({"scenario": "magic"})
    told = ended(lab.start({"scenario": "dedup", "a": {"config": {"max_model_len": 16}}}))
    assert told["state"] == "error"
    assert "there is room for" in told["error"]
    assert (arms.arms, engine.paused) == ([], False)


def test_stopping_in_the_middle_of_a_run(engine: FakeEngine) -> None:
    arms = FakeArms()
    lab = fake_lab(engine, arms)
    job = lab.start(LONG)
    wait_until(lambda: job.status()["state"] == "running" and job.status()["progress"][0]["state"] == "running")
    lab.stop()
    told = ended(job, 10)
    assert (told["state"], told["error"], told["result"]) == ("stopped", None, None)
    assert [run["state"] for run in told["progress"]] == ["stopped", "waiting"]
    assert job.status() == told
    assert arms.all_closed
    assert not engine.paused


def test_stopping_keeps_the_repeats_that_both_arms_have_had(engine: FakeEngine) -> None:
    runs = itertools.count(1)

    def figures(arm: MadeUpArm) -> dict[str, float]:
        if next(runs) == 4:  # after A B B; the second A is cut off
            lab.stop()
        return {}

    lab = fake_lab(engine, MadeUpArms(figures))
    document, told = ran({**BODY, "repeats": 3}, lab=lab)
    assert (told["state"], [run["state"] for run in told["progress"]][:4]) == ("stopped", ["done"] * 3 + ["stopped"])
    assert (document["repeats"], document["order"]) == (1, ["A", "B"])
    assert [(run["arm"], run["repeat"]) for run in document["runs"]] == [("A", 1), ("B", 1)]
    assert has(document["summary"], "Effect", once=True)


def test_stopping_while_the_engines_start(engine: FakeEngine) -> None:
    def load_for_ever(config: Any, cancelled: threading.Event) -> None:
        assert cancelled.wait(30)
        raise EngineStartError("the start was cancelled")

    lab = fake_lab(engine, FakeArms(load_for_ever))
    job = lab.start(BODY)
    wait_until(lambda: engine.paused)
    lab.stop()
    told = ended(job, 10)
    assert (told["state"], told["error"]) == ("stopped", None)
    assert not engine.paused


def test_an_arm_that_does_not_start_is_told_and_the_other_is_given_up(engine: FakeEngine) -> None:
    engine.model = "/somewhere/its-name"

    def only_a(config: Any, cancelled: threading.Event) -> None:
        if config.num_blocks == 7:
            raise EngineStartError(f"{engine.model}/config.json: 7 blocks are too few")
        assert cancelled.wait(30)
        raise EngineStartError("the start was cancelled")

    lab = fake_lab(engine, FakeArms(only_a))
    told = ended(lab.start({**BODY, "b": {"config": {"num_blocks": 7}}}))
    why = "arm B did not start: its-name/config.json: 7 blocks are too few"  # visitors may not know the model's path
    assert (told["state"], told["error"]) == ("error", why)
    assert not engine.paused


def test_an_engine_that_fails_in_a_run_is_told_with_its_reason(engine: FakeEngine) -> None:
    arms = FakeArms()
    lab = fake_lab(engine, arms)
    job = lab.start({**LONG, "repeats": 2})
    wait_until(lambda: job.status()["progress"][1]["state"] == "running")
    second = next(e for e in arms.engines if e.knobs.prefill_max_tokens == 64)

    def gone(*_: Any, **__: Any) -> None:
        raise EngineError("the engine's process ended (exit code -9)")

    second.inspect_block = gone  # the first call once its run has ended
    second.abort_all()
    told = ended(job)
    assert told["state"] == "error"
    assert told["error"].startswith("arm B, run 1: ")
    assert "failed" in told["error"] or "process ended" in told["error"]
    assert arms.all_closed
    assert not engine.paused


def test_a_run_with_a_request_that_was_cut_off_does_not_count(engine: FakeEngine) -> None:
    workload = [Arrival(0.0, [1, 2, 3], SamplingParams(max_new_tokens=5)) for _ in range(3)]

    class CutTheSecond(list[Outcome]):
        def append(self, outcome: Outcome) -> None:
            if outcome.stream.request_id == 2:
                engine.abort(2)
            else:
                engine.step(10)

    progress = RunProgress("A", 1, 3, sent=CutTheSecond())
    with pytest.raises(RunError, match="1 of 3 requests failed: abort"):
        PlayedArm(engine).run(workload, RunTerms(threading.Event(), 60.0, progress=progress))


def test_a_run_that_takes_too_long_is_given_up(engine: FakeEngine) -> None:
    arms = FakeArms()
    arms.step_s = 0.05
    job = Job(parse_experiment(LONG), engine, lambda document: "", arms, run_limit_s=0.4)
    job.start()
    told = ended(job)
    assert (told["state"], told["error"]) == ("error", "arm A, run 1: a run took longer than 0.4 s: send less")
    assert arms.all_closed
    assert not engine.paused


def test_a_mistake_of_ours_is_an_error_too_and_not_the_end(engine: FakeEngine) -> None:
    def broken(arm: MadeUpArm) -> dict[str, float]:
        raise IndexError("a bug")

    arms = MadeUpArms(broken)
    told = ended(fake_lab(engine, arms).start(BODY))
    assert (told["state"], told["error"]) == ("error", "IndexError: a bug")
    assert arms.all_closed
    assert not engine.paused


def test_a_limit_that_is_lifted_is_named_so() -> None:
    arms = {"a": {"knobs": {"prefill_max_tokens": 64}}, "b": {"knobs": {"prefill_max_tokens": None}}}
    document, _ = ran({"scenario": "token-budget", "params": QUICK, **arms})
    assert "∞" in document["arms"]["B"]["label"] and "64" in document["arms"]["A"]["label"]
