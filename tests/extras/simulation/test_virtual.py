"""Virtual time: the same times as the engine's own loop gives, with and without skipping steps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from roseplay.clock import VirtualClock
from roseplay.config import POLICIES, EngineConfig, Knobs, SamplingParams
from roseplay.engine.messages import Command, Event, Shutdown, StepOutput, Submit
from roseplay.engine.worker import Worker
from roseplay.extras.simulation.evidence import cost_model
from roseplay.extras.simulation.gpus import find_gpu
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.outcome import Simulated, SimulatedRequest
from roseplay.extras.simulation.runner import SimulatedRunner
from roseplay.extras.simulation.step_summaries import StepSummary
from roseplay.extras.simulation.summary import summarize
from roseplay.extras.simulation.virtual import VirtualServer
from roseplay.traffic.metrics import percentile
from roseplay.traffic.waits import waits_grow


def runner_on(clock: VirtualClock, **config: Any) -> SimulatedRunner:
    cost, evidence = cost_model(find_shape("qwen3-8b"), find_gpu("h100"))
    return SimulatedRunner(cost, evidence, EngineConfig(**config), clock)


def play(
    traffic: list[SimulatedRequest],
    knobs: Knobs,
    *,
    skip: bool = True,
    clients: int | None = None,
    records: bool = False,
    **config: Any,
) -> tuple[Simulated, Any]:
    clock = VirtualClock()
    server = VirtualServer(runner_on(clock, **config), clock, knobs, skip=skip, records=records)
    return server.play(traffic, clients), server.scheduler


@dataclass
class EngineLoop:
    """The engine's worker on a virtual clock, which gives it each request at its time."""

    traffic: list[SimulatedRequest]
    clock: VirtualClock = field(default_factory=VirtualClock)
    times: dict[int, list[int]] = field(default_factory=dict)
    steps: list[StepSummary] = field(default_factory=list)
    scheduled_ns: dict[int, int] = field(default_factory=dict)
    sent: int = 0

    def take(self, timeout: float | None) -> list[Command]:
        arrivals = [round(one.at_s * 1e9) for one in self.traffic]
        if timeout is None:
            if self.sent == len(self.traffic):
                return [Shutdown()]
            self.clock.advance_to(arrivals[self.sent])
        taken: list[Command] = []
        while self.sent < len(self.traffic) and arrivals[self.sent] <= self.clock.now_ns():
            one = self.traffic[self.sent]
            params = SamplingParams(
                max_new_tokens=one.answer_tokens, ignore_eos=True, tenant=one.tenant, priority=one.priority
            )
            taken.append(Submit(self.sent, list(one.token_ids), params, 0))
            self.sent += 1
        return taken

    def send(self, event: Event) -> None:
        if isinstance(event, StepOutput):
            for token in event.tokens:
                self.times.setdefault(token.request_id, []).append(event.published_ns)
            record = event.record
            for request_id in record.admitted:
                self.scheduled_ns.setdefault(request_id, record.start_ns)
            if record.entries:
                work = (record.start_ns, record.end_ns, record.prompt_tokens, record.decode_tokens)
                blocks = record.blocks_active + record.blocks_shared
                self.steps.append(StepSummary(*work, record.running, record.waiting, blocks))

    def run(self, knobs: Knobs, **config: Any) -> None:
        runner = runner_on(self.clock, **config)
        Worker(runner, EngineConfig(**config), knobs, self, self.send, self.clock).run()


def make_traffic(
    count: int, rate: float, prompts: tuple[int, int], answers: tuple[int, int], seed: int = 0, same: int = 1
) -> list[SimulatedRequest]:
    """Poisson arrivals; ``same`` requests in a row have the same prompt."""
    rng, at_s, found = random.Random(seed), 0.0, []
    for number in range(count):
        prompt = [rng.randrange(1000) for _ in range(rng.randint(*prompts))]
        if number % same:
            prompt = list(found[-1].token_ids)
        found.append(SimulatedRequest(at_s, prompt, rng.randint(*answers)))
        at_s += rng.expovariate(rate)
    return found


def some_case(seed: int) -> tuple[list[SimulatedRequest], Knobs, dict[str, Any]]:
    """Random traffic and settings: pools that are too small, prompts in parts, full batches, shared prompts."""
    rng = random.Random(f"case {seed}")
    knobs = Knobs(
        max_batch_size=rng.choice([4, 16, 64]),
        overlap=rng.random() < 0.6,
        prefix_cache=rng.random() < 0.7,
        prefill_max_tokens=rng.choice([None, 64, 300]),
        step_max_tokens=rng.choice([None, None, 128]),
        cuda_graphs=rng.random() < 0.5,
    )
    config = {
        "num_blocks": rng.choice([30, 60, 2000]),
        "block_size": rng.choice([4, 16, 16]),
        "max_model_len": rng.choice([100, 200]),
    }
    rate, same = rng.choice([1, 20, 200]), rng.choice([1, 1, 3])
    prompts, answers = rng.choice([((1, 50), (1, 50)), ((1, 12), (40, 85))])
    return make_traffic(rng.randint(5, 60), rate, prompts, answers, seed, same), knobs, config


def check_skipping(traffic: list[SimulatedRequest], knobs: Knobs, **more: Any) -> tuple[Simulated, Any, Any]:
    """Skipping steps changes no times; returns what was played with skipping, and the schedulers with and without."""
    (single, stepped), (skipping, skipped) = (play(traffic, knobs, skip=skip, **more) for skip in (False, True))
    assert single.requests == skipping.requests
    assert list(single.ends_ns) == list(skipping.ends_ns)
    assert (single.skipped, single.tokens) == (0, skipping.tokens)
    assert (single.busiest, single.peak_blocks) == (skipping.busiest, skipping.peak_blocks)
    return skipping, skipped, stepped


# Seeds beyond 9 have once found a fault.
@pytest.mark.parametrize("seed", [*range(10), 50, 206, 395, 1166, 1394])
def test_skipping_steps_changes_nothing(seed: int) -> None:
    traffic, knobs, config = some_case(seed)
    _, skipped, stepped = check_skipping(traffic, knobs, **config)
    assert stepped.pool.ref_counts == skipped.pool.ref_counts
    assert [stepped.pool.is_findable(b) for b in range(30)] == [skipped.pool.is_findable(b) for b in range(30)]
    assert stepped.next_step_id - skipped.next_step_id in (0, 1)  # a step without entries is not counted


def test_the_cases_skip_preempt_and_share() -> None:
    played = [play(traffic, knobs, **config)[0] for traffic, knobs, config in map(some_case, range(25))]
    assert sum(one.skipped for one in played) > 1000
    assert sum(times.preemptions for one in played for times in one.requests) > 20
    assert sum(times.cached_tokens for one in played for times in one.requests) > 500


def policy_case(seed: int, policy: str) -> tuple[list[SimulatedRequest], Knobs, dict[str, Any]]:
    """``some_case`` with more requests than run at once, repeated prompts, several tenants, and any policy."""
    rng = random.Random(f"policy {seed}")
    _, knobs, config = some_case(seed)
    changes = {
        "scheduling_policy": policy,
        "max_overtakes": rng.choice([None, 3, 20]),
        "prefill_interval": rng.choice([0, 0, 3]),
        "max_batch_size": rng.choice([3, 5, 64]),
        "prefill_max_tokens": None,
    }
    config = {**config, "num_blocks": rng.choice([18, 30, 2000]), "block_size": rng.choice([4, 16])}
    traffic = make_traffic(40, rng.choice([30, 100, 300]), (1, 25), (1, 60), seed)
    prompts, names = [one.token_ids for one in traffic[:12]], [None, "a", "a", "b"]
    traffic = [
        one._replace(token_ids=rng.choice(prompts), tenant=rng.choice(names), priority=rng.randrange(3))
        for one in traffic
    ]
    return traffic, knobs.changed(changes), config


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [0, 7, 46])
def test_skipping_steps_changes_nothing_under_any_policy(seed: int, policy: str) -> None:
    traffic, knobs, config = policy_case(seed, policy)
    check_skipping(traffic, knobs, **config)


def test_the_cases_skip_and_overtake_under_any_policy() -> None:
    cases = {policy: [policy_case(seed, policy) for seed in range(6)] for policy in POLICIES}
    played = {
        policy: [play(traffic, knobs, **config)[0] for traffic, knobs, config in cases[policy]] for policy in cases
    }
    in_order = played.pop("fcfs")
    for by_policy in played.values():
        assert sum(one.skipped for one in by_policy) > 50
        assert sum(one.requests != other.requests for one, other in zip(by_policy, in_order, strict=True)) > 2


def check_loop(traffic: list[SimulatedRequest], knobs: Knobs, config: dict[str, Any], *, skip: bool) -> Simulated:
    """Virtual time is that of the engine's own loop, and so are the records of steps."""
    loop = EngineLoop(traffic)
    loop.run(knobs, **config)
    played, _ = play(traffic, knobs, skip=skip, records=True, **config)
    assert {i: list(played.token_times_ns(i)) for i in range(len(traffic))} == loop.times
    assert played.steps is not None and list(played.steps) == loop.steps
    assert {i: times.scheduled_ns for i, times in enumerate(played.requests)} == loop.scheduled_ns
    return played


@pytest.mark.parametrize(("seed", "skip"), [*((seed, True) for seed in range(10)), (0, False), (7, False)])
def test_virtual_time_is_that_of_the_engines_loop(seed: int, skip: bool) -> None:
    traffic, knobs, config = some_case(seed)
    played = check_loop(traffic, knobs, config, skip=skip)
    answers = [len(request.token_ids) - request.num_prompt_tokens for request in played.served]
    assert answers == [one.answer_tokens for one in traffic]


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_policies_act_alike_in_the_engines_loop(policy: str) -> None:
    check_loop(*policy_case(3, policy), skip=True)


def test_a_second_play_goes_on_with_the_cache_and_the_time_of_the_first() -> None:
    traffic, clock = make_traffic(12, 30, (40, 60), (5, 30)), VirtualClock()
    server = VirtualServer(runner_on(clock, num_blocks=500, max_model_len=200), clock, records=True)
    first, second = server.play(traffic), server.play(traffic)
    assert sum(times.cached_tokens for times in first.requests) == 0
    assert all(times.cached_tokens >= 32 for times in second.requests)
    server.scheduler.clear_cache()
    third = server.play(traffic)
    assert third.start_ns == second.start_ns + round(second.seconds * 1e9)
    moved = [
        [value - one.start_ns for value in row[:2]] + list(row[2:]) for one in (first, third) for row in one.steps or ()
    ]
    assert moved[: len(moved) // 2] == moved[len(moved) // 2 :]


@pytest.mark.parametrize("overlap", [True, False])
def test_clients_send_one_request_after_the_other(overlap: bool) -> None:
    traffic, config = make_traffic(30, 1, (5, 60), (10, 40)), {"num_blocks": 60, "max_model_len": 100}
    skipping, *_ = check_skipping(traffic, Knobs(overlap=overlap), clients=8, **config)
    assert skipping.skipped > len(skipping.ends_ns) / 3
    ends = sorted(int(skipping.token_times_ns(i)[-1]) for i in range(30))
    assert [times.arrived_ns for times in skipping.requests] == [0] * 8 + ends[:22]


def test_most_steps_of_many_streams_are_skipped() -> None:
    burst = [one._replace(at_s=0.0) for one in make_traffic(64, 1, (50, 200), (200, 200))]
    played, scheduler = play(burst, Knobs(max_batch_size=64), max_model_len=2048)
    assert played.tokens == 64 * 200
    assert (played.busiest, len(played.ends_ns)) == (64, 200)
    assert played.skipped > 190
    assert scheduler.pool.num_available == scheduler.pool.num_usable


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("answer", [1, 2])
def test_requests_count_as_running_while_their_only_step_runs(answer: int, overlap: bool) -> None:
    """An answer of one token ends with the step that computes its prompt."""
    burst = [one._replace(at_s=0.0) for one in make_traffic(10, 1, (33, 48), (answer, answer))]
    played, scheduler = play(burst, Knobs(max_batch_size=6, overlap=overlap, prefix_cache=False), max_model_len=200)
    assert (played.busiest, played.peak_blocks) == (6, 6 * 3)
    assert scheduler.pool.num_available == scheduler.pool.num_usable


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_the_peak_of_blocks_counts_those_of_answers_that_end_within_a_run(skip: bool, overlap: bool) -> None:
    """The second answer takes its last block in the step in which it ends, while the first goes on."""
    traffic = [SimulatedRequest(0.0, [n + 1] * 30, answer) for n, answer in enumerate((18, 4))]
    knobs = Knobs(overlap=overlap, prefix_cache=False)
    played, _ = play(traffic, knobs, skip=skip, max_model_len=200)
    assert (played.busiest, played.peak_blocks) == (2, 2 * 3)


@pytest.mark.parametrize(("clients", "refused"), [(None, 1), (1, 0)])
def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on(clients: int | None, refused: int) -> None:
    """A client whose request is refused sends the next."""
    traffic = make_traffic(3, 1, (50, 50), (10, 10))
    traffic[refused] = traffic[refused]._replace(answer_tokens=5000)
    played, _ = play(traffic, Knobs(), clients=clients, max_model_len=2048)
    assert "the model's limit is 2048" in played.requests[refused].refused
    assert [len(played.token_times_ns(i)) for i in range(3)] == [0 if i == refused else 10 for i in range(3)]


def test_no_more_requests_wait_than_may() -> None:
    burst, clock = [one._replace(at_s=0.0) for one in make_traffic(5, 1, (50, 50), (4, 4))], VirtualClock()
    played = VirtualServer(runner_on(clock, max_model_len=200), clock, max_waiting=2).play(burst)
    assert [bool(times.refused) for times in played.requests] == [False, False, True, True, True]
    assert "2 requests are already waiting" in played.requests[2].refused


def test_waiting_times_grow_if_they_do_so_by_half_and_a_quarter_of_a_second() -> None:
    for second_s, last_s, growing in ((2.0, 2.9, False), (2.0, 3.3, True), (0.1, 0.3, False), (0.1, 0.5, True)):
        assert waits_grow([9.0, 9.0, second_s, second_s, 5.0, 5.0, last_s, last_s]) == growing
    assert not waits_grow([1.0, 2.0, 3.0])


def test_figures_are_those_of_the_single_requests() -> None:
    traffic = make_traffic(40, 60, (10, 100), (1, 60), seed=3, same=2)
    played, _ = play(traffic, Knobs(max_batch_size=8), num_blocks=40, max_model_len=200)
    found = summarize(played, server_s=0.008)
    times = [played.token_times_ns(i) for i in range(len(traffic))]
    ttft = sorted((t[0] - r.arrived_ns) / 1e9 + 0.008 for t, r in zip(times, played.requests, strict=True))
    gaps = sorted(np.concatenate([np.diff(t) for t in times]) / 1e9)
    assert found.ttft_s == pytest.approx([percentile(ttft, p) for p in (50, 95, 99)])
    assert found.itl_s == pytest.approx([percentile(gaps, p) for p in (50, 95, 99)])
    assert found.output_tokens_per_s == pytest.approx(sum(map(len, times)) / played.seconds)
    assert (found.requests, found.busiest, found.refused) == (40, 8, 0)
    cached, prompts = (sum(getattr(r, n) for r in played.requests) for n in ("cached_tokens", "prompt_tokens"))
    assert found.cached == cached / prompts > 0.1
    assert found.preemptions == sum(r.preemptions for r in played.requests) > 0
    assert 0.5 < found.kv_use <= 1


def test_a_run_is_saturated_if_its_queue_grows() -> None:
    for rate, saturated in ((5, False), (200, True)):
        played, _ = play(make_traffic(80, rate, (900, 1100), (32, 32)), Knobs(max_batch_size=8), max_model_len=2048)
        assert summarize(played).saturated == saturated


def test_what_cannot_be_simulated_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="speculative_tokens cannot be simulated"):
        play([], Knobs(speculative_tokens=3))
