"""The lab on simulated hardware: the results of a live simulated engine, at once, and what they say about themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.core.progress import Reporter
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.detokenizer import make_decoder
from roseplay.engine.messages import Command, Event, Shutdown, StepOutput, Submit
from roseplay.engine.prompts import encode_prompt
from roseplay.engine.receiver import Receiver
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import Telemetry
from roseplay.engine.worker import Worker
from roseplay.extras.lab.arms import ClosedEngine
from roseplay.extras.lab.command import main
from roseplay.extras.lab.job import Job, largest_bound
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.load import Load, make_load
from roseplay.extras.lab.measuring import MeasuredRun, RunError, RunTerms, run_record
from roseplay.extras.lab.order import parse_experiment
from roseplay.extras.lab.report import html_report, text_report
from roseplay.extras.lab.results import experiment_of, parse_result, points_csv
from roseplay.extras.lab.simulated_arm import SimulatedArm
from roseplay.extras.lab.words import sentences
from roseplay.extras.simulation.hardware import HARDWARE
from roseplay.traffic.driver import Outcome, Played
from roseplay.traffic.scenario import Scenario
from roseplay.traffic.scenarios import SCENARIOS
from roseplay.traffic.workload import Workload
from tests.extras.lab.findings import finding
from tests.waiting import wait_until

MODEL, H100 = "qwen3-8b", EngineConfig(run_as="h100")


@dataclass
class LiveEngine:
    """A simulated engine's loop and streams on a virtual clock, which gets each request when a driver would send it."""

    arm: SimulatedArm
    workload: Workload
    knobs: Knobs
    config: EngineConfig
    clock: VirtualClock = field(default_factory=VirtualClock)
    outcomes: list[Outcome] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=count)

    def run(self) -> MeasuredRun:
        self.receiver = Receiver(Telemetry(1000), self.knobs, lambda _: None, self.clock)
        runner = HARDWARE.load_runner(MODEL, self.config, Reporter(None), self.clock)
        Worker(runner, self.config, self.knobs, self, self.send, self.clock).run()
        for outcome in self.outcomes if self.knobs.admission == "blocking" else ():
            outcome.submit_end_ns = outcome.stream.metrics.first_token_ns or 0
        return MeasuredRun.of_played(Played(self.outcomes), self.records)

    @property
    def next_ns(self) -> int | None:
        """When the next request is sent; None before that is known."""
        due_ns = round(self.workload[len(self.outcomes)].at_s * 1e9)
        if self.knobs.admission == "queued" or not self.outcomes:
            return due_ns
        stream = self.outcomes[-1].stream
        first_ns = stream.metrics.first_token_ns if stream is not None else None
        return None if first_ns is None else max(due_ns, first_ns)

    def take(self, timeout: float | None) -> list[Command]:
        if timeout is None:
            if len(self.outcomes) == len(self.workload):
                return [Shutdown()]
            self.clock.advance_to(self.next_ns or 0)
        taken: list[Command] = []
        while len(self.outcomes) < len(self.workload):
            sent_ns = self.next_ns
            if sent_ns is None or sent_ns > self.clock.now_ns():
                break
            taken.append(self.submit(sent_ns))
        return taken

    def submit(self, sent_ns: int) -> Command:
        arrival = self.workload[len(self.outcomes)]
        ids = encode_prompt(arrival.prompt, self.arm.tokenizer, self.arm.info.vocab_size)
        decoder = make_decoder(self.arm.tokenizer, ids)
        stream = Stream(next(self.ids), ids, arrival.params, lambda _: False, sent_ns, decoder=decoder)
        self.receiver.add(stream)
        self.outcomes.append(Outcome(arrival, stream, round(arrival.at_s * 1e9), sent_ns, sent_ns))
        return Submit(stream.request_id, ids, arrival.params, sent_ns)

    def send(self, event: Event) -> None:
        if isinstance(event, StepOutput):
            self.receiver.take(event)
            if event.record.entries:
                self.records.append(event.record)


def runs(arm: SimulatedArm, workload: Workload, **how: Any) -> dict[str, Any]:
    """The record of a simulated run."""
    return run_record("A", 1, arm.run(workload, RunTerms(threading.Event(), 60, **how)))


# Clients that block, chunks, tenants, and prompts that are cached or shared; tests of ``sim`` compare other settings.
@pytest.mark.parametrize("name", ["admission", "dedup", "fair-tenants", "token-budget"])
def test_a_run_is_that_of_a_live_engine(name: str) -> None:
    scenario = SCENARIOS[name]
    for side, knobs in scenario.arms().items():
        check_run(scenario, knobs, replace(H100, **scenario.settings(side)["config"]), 2048)


def test_a_run_under_preemption_and_a_full_batch_is_that_of_a_live_engine() -> None:
    scenario = SCENARIOS["kv-pressure"].changed({"num_requests": 40})
    knobs = Knobs(max_batch_size=12, prefill_max_tokens=100, overlap=False)
    assert check_run(scenario, knobs, replace(H100, num_blocks=40, block_size=16), 600)["preemptions"] > 5


def check_run(scenario: Scenario, knobs: Knobs, config: EngineConfig, room: int) -> dict[str, Any]:
    """The record of a run of this scenario, which is that of a live engine."""
    arm = SimulatedArm(MODEL, config, knobs)
    workload = make_load(Load(scenario=scenario), arm, room).workload
    record = runs(arm, workload)
    del record["saturated"]
    assert record == run_record("A", 1, LiveEngine(arm, workload, knobs, config).run())
    return record


def test_clients_send_when_they_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """The order says so, and the result repeats it."""
    flags = ["poisson", "--concurrency", "4", "--num-requests", "20", "--run-as", "h100", "--model", MODEL, "--json"]
    assert main(flags) == 0
    document = parse_result(capsys.readouterr().out.encode())
    assert document["params"] == {"num_requests": 20, "max_new_tokens": 32, "concurrency": 4}
    assert parse_experiment(experiment_of(document)).scenario.concurrency == 4
    for run in document["runs"]:
        requests = run["requests"]
        for sent in requests:
            at_ms = sent["arrival_ms"]
            ends_ms = [one["arrival_ms"] + one["e2e_ms"] for one in requests if one["arrival_ms"] <= at_ms]
            assert sum(end > at_ms + 0.1 for end in ends_ms) <= 4
            assert sent["ttft_from_arrival_ms"] == pytest.approx(sent["ttft_ms"], abs=0.01)
        assert requests[-1]["arrival_ms"] > 0
    with pytest.raises(ValueError, match="not at a rate"):
        parse_experiment({"scenario": "poisson", "params": {"concurrency": 4, "rate_per_s": 5}})
    with pytest.raises(ValueError, match="not at a rate"):
        parse_experiment(
            {"scenario": "poisson", "params": {"concurrency": 4}, "sweep": {"setting": "rate_per_s", "from": 1}}
        )


def test_a_repeat_is_equal_and_the_cache_is_kept_only_if_asked_for() -> None:
    arm = SimulatedArm(MODEL, H100, Knobs())
    workload = make_load(Load(scenario=SCENARIOS["shared-head"]), arm, 2048).workload
    first = runs(arm, workload)
    assert runs(arm, workload) == first
    assert runs(arm, workload, keep_cache=True)["saved_tokens"] > first["saved_tokens"] > 0
    assert runs(arm, workload) == first


def test_requests_beyond_the_queue_are_refused() -> None:
    arm = SimulatedArm(MODEL, replace(H100, max_waiting=8), Knobs())
    workload = make_load(Load(scenario=SCENARIOS["dedup"]), arm, 2048).workload
    with pytest.raises(RunError, match=r"24 of 32 requests were refused: 8 requests are already waiting"):
        runs(arm, workload)
    spread = [replace(arrival, at_s=0.05 * index) for index, arrival in enumerate(workload)]
    assert len(runs(arm, spread)["requests"]) == 32


# -- experiments


def ran(body: dict[str, Any], config: EngineConfig = H100, model: str = MODEL, **how: Any) -> dict[str, Any]:
    """The result of an experiment, as it is read from its file."""
    results: list[dict[str, Any]] = []
    job = started(body, config, model, keep=lambda document: results.append(document) or "id", **how)
    assert job.wait(60)
    assert job.error is None
    return parse_result(json.dumps(results[-1]).encode())


def started(body: dict[str, Any], config: EngineConfig = H100, model: str = MODEL, **how: Any) -> Job:
    experiment = parse_experiment(body)
    job = Job(experiment, ClosedEngine.of(model, config, experiment.arms), **{"keep": lambda _: "id", **how})
    job.start()
    return job


def test_two_gpus_are_compared_and_the_result_says_what_it_is_worth() -> None:
    arms = {"a": {"config": {"run_as": "h100"}}, "b": {"config": {"run_as": "h200"}}}
    document = ran({"scenario": "poisson", "repeats": 5, "max_spread_pct": 3, **arms}, EngineConfig())
    assert (document["repeats"], document["order"]) == (1, ["A", "B"])  # a repeat would be equal
    assert document["device"] == "simulated H100 SXM and simulated H200 SXM"
    assert document["arms"]["A"]["label"].startswith("Run as h100, KV blocks ")
    assert document["arms"]["B"]["config"]["num_blocks"] > 1.5 * document["arms"]["A"]["config"]["num_blocks"]
    assert document["arms"]["A"]["simulated"]["evidence"].startswith("H100 SXM, calibrated on ")
    rows = {row["name"]: row for row in document["summary"]["metrics"]}
    assert rows["itl_p50_ms"]["ratio"] < 0.9 and rows["itl_p50_ms"]["verdict"] == "better"
    assert "kv_pool_tokens" not in rows  # follows from the GPU
    said = sentences(document["summary"])
    assert not any("repeat it" in line or "spread" in line for line in said)
    assert said[-1].startswith("Simulated: A: H100 SXM, calibrated on ")
    assert "; B: H200 SXM, uncalibrated (error at " in said[-1]
    assert said[-1].endswith("A repeat would give the same figures.")
    for text in ("\n".join(text_report(document)), html_report(document)):
        assert "each arm simulated once" in text
        assert "calibrated on" in text and "about the same" in text and "within the spread" not in text


def test_a_result_of_simulated_arms_can_be_repeated() -> None:
    arms = {"a": {"config": {"run_as": "h100"}}, "b": {"config": {"run_as": "l40s"}}}
    document = ran({"scenario": "dedup", **arms}, EngineConfig())
    again = ran(experiment_of(document), EngineConfig())
    assert again["runs"] == document["runs"]


def test_a_small_difference_counts_without_repeats_only_if_it_is_exact() -> None:
    body = {
        "scenario": "shared-head",
        "a": {"knobs": {"step_max_tokens": 900}},
        "b": {"knobs": {"step_max_tokens": 800}},
    }
    rows = {row["name"]: row for row in ran(body)["summary"]["metrics"]}
    assert 1.05 < 1 / rows["ttft_p50_ms"]["ratio"] < 1.15
    assert rows["ttft_p50_ms"]["verdict"] == "better"


def test_a_sweep_measures_each_rate_once_and_says_which_are_saturated() -> None:
    knobs = {"max_batch_size": 8}
    sweep = {"setting": "rate_per_s", "from": 5, "to": 65, "points": 3, "seconds": 8}
    document = ran(
        {"scenario": "poisson", "repeats": 3, "a": {"knobs": knobs}, "params": {"max_new_tokens": 64}, "sweep": sweep}
    )
    assert [len(point["runs"]) for point in document["points"]] == [1, 1, 1]
    assert [point["runs"][0]["saturated"] for point in document["points"]] == [False, True, True]
    said = sentences(document["summary"])
    assert said[-1].startswith(
        "Saturated, the queue keeps growing: at 35 requests/s and at 65 requests/s, requests arrive faster"
    )
    assert "no error bound" in said[-1]
    assert said[-2].startswith("Simulated: H100 SXM, calibrated on ")


FIND: dict[str, Any] = {"setting": "prefill_max_tokens", "itl_p99_ms": 14, "ttft_p95_ms": 150, "from": 16, "to": 1024}


def test_a_search_has_the_regret_of_its_answer_under_the_error_of_the_simulation() -> None:
    document = ran({"scenario": "token-budget", "params": {"rate_per_s": 25}, "find": FIND})
    error_pct = document["arms"]["A"]["simulated"]["error_pct"]
    assert 5 < error_pct < 20
    points, summary = {point["value"]: point for point in document["points"]}, document["summary"]
    answer = document["points"][summary["answer"]]
    losses = [0.0]
    for case in (lambda point: point["runs"][0], lambda point: point["shorter"], lambda point: point["longer"]):
        of = {value: case(point) for value, point in points.items()}
        for value, figures in of.items():
            if value != answer["value"] and figures["itl_p99_ms"] <= 14 and figures["ttft_p95_ms"] <= 150:
                losses.append(100 * (of[answer["value"]]["ttft_p95_ms"] / figures["ttft_p95_ms"] - 1))
    regret = finding(summary, "Regret")
    assert regret and regret["pct"] == pytest.approx(max(losses), abs=0.06)
    assert answer["shorter"]["itl_p99_ms"] < answer["runs"][0]["itl_p99_ms"] < answer["longer"]["itl_p99_ms"]
    ratio = answer["longer"]["itl_p50_ms"] / answer["runs"][0]["itl_p50_ms"]
    assert ratio == pytest.approx(1 + error_pct / 100, rel=0.02)
    assert points_csv(document)


@pytest.mark.parametrize(
    ("bounds", "error"), [((0.0, 0.0), 0.0), ((0.0, 0.2), 0.2), ((0.3, 0.2), 0.3), ((0.0, None), None)]
)
def test_a_bound_of_nothing_is_a_bound(bounds: tuple[float | None, ...], error: float | None) -> None:
    assert largest_bound(bounds) == error


def test_a_search_with_an_error_of_nothing_simulates_each_value_once() -> None:
    asked = parse_experiment({"scenario": "token-budget", "find": {**FIND, "to": 32}}).simulated(0.0)
    points = asked.points()
    assert [point.value for point in points] == [16, 24, 32, None]
    figures = {"itl_p99_ms": 99.0, "ttft_p95_ms": 1.0}
    while following := asked.again(points):
        following[0].runs.append(figures)
    found = asked.result({}, points)
    assert len(found["points"]) > 1
    assert all(point["shorter"] == point["longer"] == figures for point in found["points"])


def test_a_mixture_of_experts_has_no_bound_and_the_search_no_regret(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    shape = {
        "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 2048, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    about = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "max_position_embeddings": 4096}
    file.write_text(json.dumps({**about, **shape}))
    document = ran(
        {"scenario": "token-budget", "params": {"rate_per_s": 5}, "find": {**FIND, "itl_p99_ms": 50}}, model=str(file)
    )
    assert document["arms"]["A"]["simulated"]["error_pct"] is None
    assert document["summary"]["answer"] is not None
    regret = finding(document["summary"], "Regret")
    assert regret and (regret["pct"], regret["unknown"]) == (None, "unbounded")


GPU = {"config": {"run_as": "h100"}}


@pytest.mark.parametrize(
    ("arms", "config", "refusal"),
    [
        ({"a": GPU, "b": {}}, EngineConfig(), "arm A is simulated and arm B would be measured"),
        ({"a": {}, "b": {"config": {"run_as": None}}}, H100, "arm B"),
        ({"a": {}, "b": {"config": {"threads": 2}}}, H100, "arm B: threads has no effect on simulated hardware"),
        (
            {"a": {"knobs": {"batched_append": False}}, "b": {}},
            H100,
            "arm A: batched_append has no effect on simulated",
        ),
        ({"a": {}, "b": {"config": {"tensor_parallel_size": 3}}}, H100, "arm B: qwen3-8b has 32 attention heads"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(arms: Any, config: EngineConfig, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal) as found:
        ran({"scenario": "poisson", **arms}, config)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("more", [{}, {"sweep": {"setting": "max_batch_size", "from": 1, "to": 4, "points": 2}}])
def test_knobs_that_a_simulated_engine_cannot_have_are_refused_when_it_opens(more: Any) -> None:
    for knobs, refusal in (
        ({"preemption_mode": "swap"}, "preemption_mode swap is not possible"),
        ({"speculative_tokens": 4}, "speculative_tokens cannot be simulated"),
    ):
        job = started({"scenario": "poisson", "a": {}, "b": {"knobs": knobs}, **more})
        assert job.wait(60)
        assert (job.state, job.result) == ("error", None)
        assert f"arm B: {refusal}" in str(job.error)


def test_the_page_offers_the_hardware_of_an_arm() -> None:
    closed = ClosedEngine.of(MODEL, H100)
    engine: Any = SimpleNamespace(info=closed.info, config=closed.config, capabilities=Capabilities())
    offered = Lab(engine).describe()["engine"]
    assert (offered["run_as"], offered["tensor_parallel_size"], offered["device"]) == ("h100", 1, "simulated H100 SXM")


def test_a_search_that_keeps_the_cache_has_repeats_whose_spread_counts() -> None:
    find = {"setting": "max_batch_size", "itl_p99_ms": 50, "ttft_p95_ms": 0.01, "from": 4, "to": 8}
    document = ran({"scenario": "shared-head", "repeats": 3, "find": find}, keep_cache=True)
    assert all(len(point["runs"]) >= 3 for point in document["points"])
    assert sentences(document["summary"])[-2].endswith("medians of 3 runs.")


def test_a_long_run_is_stopped_at_once() -> None:
    body = {
        "scenario": "poisson",
        "length": 10,
        "params": {"num_requests": 90, "max_new_tokens": 100, "rate_per_s": 900},
    }
    job = started(body)
    wait_until(lambda: any(run["done"] for run in job.status()["progress"]))
    job.stop()
    assert job.wait(60)
    assert job.state == "stopped"
    assert sum(run["done"] for run in job.status()["progress"]) < 2 * 900


def test_the_command_compares_gpus_without_loading_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--a", "run_as=h100", "--b", "run_as=h200", "--model", "llama-3.1-70b", "--max-model-len", "8192"]
    assert main(["poisson", *flags, "--a", "tensor-parallel-size=2", "--b", "tensor-parallel-size=2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "Poisson: llama-3.1-70b on simulated 2 x H100 SXM and simulated 2 x H200 SXM, bfloat16, each arm"
    )
    assert main(["poisson", *flags]) == 2
    assert "llama-3.1-70b does not fit on H100 SXM: its bf16 weights take 131.4 GiB" in capsys.readouterr().err
