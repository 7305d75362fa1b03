"""Scheduling policies: the order of admission, the bound on waiting, fairness between tenants, the prefill interval."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseplay.config import Knobs, SamplingParams
from roseplay.core.fair_share import ANSWER_WEIGHT, PROMPT_WEIGHT, FairShare
from roseplay.core.live_requests import LiveRequests
from roseplay.core.policies import LeastKey
from roseplay.core.request import Request
from tests.core.harness import BLOCK_SIZE, Rig


def one_at_a_time(policy: str, **knobs: Any) -> Rig:
    return Rig(scheduling_policy=policy, max_batch_size=1, **knobs)


def order(rig: Rig) -> list[int]:
    """The ids of the requests in the order in which they were admitted, until none is left."""
    rig.run()
    return [number for step in rig.steps for number in step.admitted]


def add(rig: Rig, length: int, answer: int = 4, **about: Any) -> Request:
    """A request with a prompt that shares nothing with others."""
    return rig.add([1000 + len(rig.requests)] * length, answer, **about)


def shares(queue: Rig | Queue) -> FairShare:
    policy = (queue.scheduler if isinstance(queue, Rig) else queue.live).waiting.policy
    assert isinstance(policy, FairShare)
    return policy


class Queue:
    """The queue alone: a request is admitted when a test says so.

    Attributes:
        searched: the requests whose cached prefixes were sought for the last choice.
    """

    def __init__(self, policy: str) -> None:
        self.live, self.knobs = LiveRequests(), Knobs(scheduling_policy=policy)
        self.searched: list[int] = []
        self.begin_step()

    def add(self, number: int, length: int = 3, **about: Any) -> None:
        self.live.add(Request(number, [1] * length, SamplingParams(**about)))

    def begin_step(self) -> None:
        self.searched.clear()
        find = lambda request: self.searched.append(request.request_id)  # noqa: E731
        self.live.waiting.begin_step(self.knobs, self.live.running, find)

    def head(self) -> Request:
        self.begin_step()
        return self.live.waiting.head

    def admit(self) -> Request:
        request = self.head()
        self.live.admit(request)
        return request


# -- order


@pytest.mark.parametrize(
    ("knobs", "requests", "expected"),
    [
        ({}, [{"length": 9, "priority": 1}, {"length": 2}, {"length": 5, "priority": -1, "tenant": "a"}], [0, 1, 2]),
        ({"scheduling_policy": "shortest"}, [{"length": length} for length in (9, 2, 5, 2, 1)], [4, 1, 3, 2, 0]),
        (
            {"scheduling_policy": "priority"},
            [{"length": 3, "priority": priority} for priority in (1, 0, -5, 0, 1)],
            [2, 1, 3, 0, 4],
        ),
    ],
    ids=["first come, first served", "shortest", "priority"],
)
def test_requests_are_admitted_in_order_with_ties_by_arrival(
    knobs: dict[str, Any], requests: list[dict[str, Any]], expected: list[int]
) -> None:
    rig = Rig(max_batch_size=1, **knobs)
    for about in requests:
        add(rig, **about)
    assert order(rig) == expected


def test_the_longest_cached_prefix_is_first_and_the_others_come_by_arrival() -> None:
    rig = one_at_a_time("lpm")
    head = [7] * (4 * BLOCK_SIZE)
    rig.add(head, 1)
    rig.run()
    rig.steps.clear()
    new = rig.add([1] * 20)
    some = rig.add(head[: 2 * BLOCK_SIZE] + [2] * 9)
    other = rig.add([3] * 5)
    most = rig.add(head + [4] * 3)
    assert order(rig) == [most.request_id, some.request_id, new.request_id, other.request_id]


def test_prompts_that_share_a_beginning_are_computed_one_after_the_other_under_lpm() -> None:
    """In a pool with room for one document's blocks, alternating questions about two compute each again and again."""
    documents = [[number] * (6 * BLOCK_SIZE) for number in (1, 2)]
    computed = {}
    for policy in ("fcfs", "lpm"):
        rig = one_at_a_time(policy, num_blocks=11)
        for number in range(8):
            rig.add([*documents[number % 2], 10 + number, number], 1)
        computed[policy] = rig.run()
    assert computed["lpm"] <= 2 * 6 * BLOCK_SIZE + 8 * (BLOCK_SIZE + 2)
    assert computed["fcfs"] > 2 * computed["lpm"]


def test_tenants_take_turns_under_fair_and_nobody_else_notices_a_flood() -> None:
    rig = one_at_a_time("fair")
    flood = [add(rig, 4, tenant="flood").request_id for _ in range(10)]
    quiet = [add(rig, 4, tenant="quiet").request_id for _ in range(3)]
    anonymous = add(rig, 4).request_id
    assert order(rig)[:7] == [flood[0], quiet[0], anonymous, flood[1], quiet[1], flood[2], quiet[2]]


def test_under_fair_answers_weigh_twice_as_much_as_prompts() -> None:
    rig = one_at_a_time("fair")
    for _ in range(6):
        add(rig, 1, tenant="long answers", answer=9)  # 1 + 2 x 9 = 19
    for _ in range(12):
        add(rig, 8, tenant="long prompts", answer=1)  # 8 + 2 x 1 = 10
    tenants = [rig.requests[number].sampling.tenant for number in order(rig)]
    assert Counter(tenants[:9]) == {"long answers": 3, "long prompts": 6}


def test_a_tenant_that_was_idle_has_not_saved_up_service() -> None:
    rig = one_at_a_time("fair")
    add(rig, 4, tenant="idle")
    for _ in range(20):
        add(rig, 4, tenant="busy")
    for _ in range(60):
        rig.step()
    back = [add(rig, 4, tenant="idle").request_id for _ in range(5)]
    before = sum(len(step.admitted) for step in rig.steps)
    assert [number in back for number in order(rig)[before : before + 6]] in ([True, False] * 3, [False, True] * 3)


def test_a_change_of_policy_acts_on_what_waits() -> None:
    rig = Rig(max_batch_size=1)
    for length in (6, 5, 4, 3):
        add(rig, length)
    rig.step()
    rig.set_knobs(scheduling_policy="shortest")
    while len(rig.scheduler.waiting) > 1:
        rig.step()
    rig.set_knobs(scheduling_policy="fcfs")
    add(rig, 1)
    assert order(rig) == [0, 3, 2, 1, 4]


# -- the bound on waiting


def overtakes(rig: Rig, request: Request, admitted: Iterable[int]) -> int:
    """How many requests that arrived later were admitted before it."""
    numbers = list(admitted)
    return sum(number > request.request_id for number in numbers[: numbers.index(request.request_id)])


@pytest.mark.parametrize("policy", ["shortest", "priority", "lpm"])
@pytest.mark.parametrize("most", [1, 7])
def test_no_request_is_overtaken_more_often_than_allowed(policy: str, most: int) -> None:
    rig = one_at_a_time(policy, max_overtakes=most)
    rig.add([5] * 12, 1)
    rig.run()
    long = [add(rig, 30, priority=9) for _ in range(2)]
    for number in range(60):  # short, urgent and cached
        rig.add([5] * 8 + [number], 1)
        rig.step()
    numbers = order(rig)
    assert [overtakes(rig, request, numbers) for request in long] == [most, most]
    assert numbers.index(long[1].request_id) == numbers.index(long[0].request_id) + 1, "first come, first served"


@pytest.mark.parametrize("policy", ["priority", "shortest"])
def test_requests_that_were_aborted_while_they_waited_have_overtaken_nobody(policy: str) -> None:
    rig = one_at_a_time(policy, max_overtakes=3)
    add(rig, 2, answer=30)
    rig.step()
    cancelled = [add(rig, 2)]
    long = add(rig, 9, priority=9, answer=1)
    cancelled += [add(rig, 2) for _ in range(6)]
    rig.step()
    for request in cancelled:
        rig.end_request(request)
    short = [add(rig, 2, answer=1) for _ in range(5)]
    ids = [request.request_id for request in (*short[:3], long, *short[3:])]
    assert order(rig) == [0, *ids]


def test_without_a_bound_the_long_prompt_starves() -> None:
    rig = one_at_a_time("shortest", max_overtakes=None)
    long = add(rig, 30)
    for _ in range(100):
        for _ in range(2):
            add(rig, 2, answer=1)
        rig.step()
    assert long.num_computed_tokens == 0


def test_under_fair_a_tenant_is_served_after_so_many_requests_of_others() -> None:
    rig = one_at_a_time("fair", max_overtakes=4)
    add(rig, 2, tenant="heavy", answer=100)
    heavy = add(rig, 2, tenant="heavy")
    for _ in range(300):
        if len(rig.scheduler.waiting) < 4:
            add(rig, 1, tenant="light", answer=1)
        rig.step()
    numbers = order(rig)
    assert numbers.index(heavy.request_id) == 1 + 2 * 4, "twice as many as allowed, since two tenants wait"


def test_under_fair_the_tenant_that_has_waited_longest_is_overdue_first() -> None:
    """Not the one that began to wait first, but has been served again and again since."""
    rig = one_at_a_time("fair", max_overtakes=4)
    for _ in range(30):
        add(rig, 1, tenant="light", answer=1)
    heavy = [add(rig, 2, tenant="heavy", answer=100).request_id for _ in range(2)]
    numbers = order(rig)
    assert numbers.index(heavy[1]) - numbers.index(heavy[0]) == 1 + 2 * 4


def test_under_fair_a_tenant_is_not_overdue_because_of_what_came_before_it() -> None:
    rig = one_at_a_time("fair", max_overtakes=4)
    add(rig, 2, tenant="heavy", answer=100)
    for _ in range(40):
        add(rig, 1, tenant="busy", answer=1)
    while len(rig.scheduler.waiting) > 20:
        rig.step()
    again = add(rig, 2, tenant="heavy").request_id
    assert order(rig).index(again) == 1 + 20 + 2 * 4


# -- fairness


@settings(max_examples=25)
@given(
    sizes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20), st.integers(1, 12)), min_size=20, max_size=40),
    batch=st.integers(1, 6),
    num_blocks=st.integers(12, 60),
)
def test_two_tenants_that_always_wait_get_the_same_service_within_the_bound(
    sizes: list[tuple[str, int, int]], batch: int, num_blocks: int
) -> None:
    """The theorem of the paper: at most twice the larger of the longest prompt and a full batch, with their weights."""
    rig = Rig(scheduling_policy="fair", max_overtakes=None, max_batch_size=batch, num_blocks=num_blocks)
    for name, prompt, answer in sizes:
        add(rig, prompt, answer=answer, tenant=name)
    bound = 2 * max(PROMPT_WEIGHT * 20, ANSWER_WEIGHT * (num_blocks - 1) * BLOCK_SIZE)
    while {request.sampling.tenant for request in rig.scheduler.waiting} == {"a", "b"}:
        rig.step()
        service = Counter(a=0, b=0)
        for request in rig.requests:
            if request.turn >= 0:
                prompt, answer = PROMPT_WEIGHT * request.num_prompt_tokens, ANSWER_WEIGHT * request.num_output_tokens
                service[str(request.sampling.tenant)] += prompt + answer
        assert abs(service["a"] - service["b"]) <= min(bound, 2 * max(20, batch * (20 + 2 * 12)))


def test_counters_are_the_tokens_of_prompts_and_answers_with_their_weights() -> None:
    rig = Rig(scheduling_policy="fair", max_batch_size=3)
    for length, name in ((5, "a"), (3, "b"), (7, "a"), (2, "b"), (1, "b")):
        add(rig, length, answer=6, tenant=name)
    rig.run()
    policy = shares(rig)
    assert policy.counter("a") == PROMPT_WEIGHT * 12 + ANSWER_WEIGHT * 12
    assert policy.counter("b") == PROMPT_WEIGHT * 6 + ANSWER_WEIGHT * 18


@pytest.mark.parametrize("shared", [False, True])
def test_counters_leave_out_prompt_tokens_that_are_cached_or_computed_for_another_request(shared: bool) -> None:
    rig = Rig(scheduling_policy="fair", max_batch_size=12 if shared else 3, prefix_cache=not shared)
    head = [7] * (4 * BLOCK_SIZE)
    for number in range(12):
        prompt = head + [100 + number] * 3 if number % 2 else [200 + number] * 5
        rig.add(prompt, 3, tenant="ab"[number % 2])
    rig.run()
    policy = shares(rig)
    attached = (sum(step.cached_tokens for step in rig.steps), sum(step.shared_tokens for step in rig.steps))
    assert attached == ((0, 5 * len(head)) if shared else (5 * len(head), 0))
    computed = Counter[str | None]()
    for step in rig.steps:
        for entry in step.entries:
            computed[entry.request.sampling.tenant] += entry.num_prompt_tokens
    assert computed == {"a": 6 * 5, "b": 4 * BLOCK_SIZE + 6 * 3}
    for name, count in computed.items():
        assert policy.counter(name) == PROMPT_WEIGHT * count + ANSWER_WEIGHT * 6 * 3


def test_a_tenant_whose_prompts_are_cached_gets_more_of_them_into_the_same_step() -> None:
    rig = Rig(scheduling_policy="fair", max_batch_size=4)
    head = [7] * (4 * BLOCK_SIZE)
    rig.add(head, 1)
    rig.run()
    rig.steps.clear()
    for number in range(4):
        rig.add([*head, 10 + number], tenant="cached")
        rig.add([20 + number] * (4 * BLOCK_SIZE + 1), tenant="new")
    rig.step()
    tenants = [rig.requests[number].sampling.tenant for number in rig.steps[0].admitted]
    assert tenants == ["cached", "new", "cached", "cached"]


def test_tenants_that_come_once_are_forgotten_but_not_those_that_run() -> None:
    queue = Queue("fair")
    queue.add(0, tenant="long")
    long = queue.admit()
    for number in range(1, 4000):
        queue.add(number, tenant=f"visitor {number}")
        queue.live.remove(queue.admit())
        long.token_ids.append(7)
    queue.begin_step()
    policy = shares(queue)
    known = [number for number in range(1, 4000) if policy.counter(f"visitor {number}")]
    assert len(known) < 2000 and known[-1] == 3999
    assert policy.counter("long") == PROMPT_WEIGHT * 3 + ANSWER_WEIGHT * long.num_output_tokens


def test_a_tenant_that_was_served_more_than_those_that_wait_is_not_forgotten() -> None:
    queue = Queue("fair")
    for number, length in enumerate([1, 40, *[1] * 500]):
        queue.add(number, length, tenant=str(number))
    first = queue.admit()
    first.num_cached_tokens = 1  # nothing was computed for it
    queue.live.remove(first)
    for number in range(502, 1102):
        queue.add(number, tenant=str(number))
    queue.live.remove(queue.admit())
    policy = shares(queue)
    assert policy.counter("1") == PROMPT_WEIGHT * 40


def test_a_preempted_request_has_been_charged_for_all_its_tokens() -> None:
    rig = Rig(scheduling_policy="fair", num_blocks=9)
    for number in range(3):
        rig.add([number] * BLOCK_SIZE, 16, tenant=str(number))
    while not rig.step().preempted:
        pass
    request = rig.requests[rig.steps[-1].preempted[0]]
    charged = shares(rig).counter(request.sampling.tenant)
    assert charged == PROMPT_WEIGHT * BLOCK_SIZE + ANSWER_WEIGHT * request.num_output_tokens


def test_a_counter_never_falls() -> None:
    """If more of a prompt is found in the cache later, tokens of the answer make up for it."""
    policy, request = FairShare(), Request(0, [1] * 10, SamplingParams(tenant="a"))
    for cached, new_tokens, counter in ((0, 0, 0), (4, 0, 0), (0, 3, 2)):
        request.num_cached_tokens += cached
        request.token_ids += [7] * new_tokens
        policy.begin_step(OrderedDict(), 1, [request], lambda request: None)
        assert policy.counter("a") == counter


# -- the prefill interval


def with_prompts(rig: Rig) -> list[int]:
    return [step.step_id for step in rig.steps if step.prompt_tokens]


def test_at_least_so_many_steps_only_decode_between_two_with_prompts() -> None:
    rig = Rig(prefill_interval=3)
    add(rig, 5, answer=40)
    rig.step()
    for _ in range(4):
        add(rig, 5, answer=40)
        rig.step()
    for _ in range(20):
        rig.step()
    assert with_prompts(rig) == [0, 4]
    assert rig.steps[4].admitted == [1, 2, 3, 4]
    assert [step.held_by for step in rig.steps[1:5]] == ["interval"] * 3 + [None]
    rig.run()


def test_the_chunks_of_a_prompt_keep_the_interval_too() -> None:
    rig = Rig(prefill_interval=2, prefill_max_tokens=BLOCK_SIZE)
    add(rig, 2, answer=60)
    rig.step()
    add(rig, 4 * BLOCK_SIZE, answer=2)
    rig.run()
    assert with_prompts(rig) == [0, 3, 6, 9, 12]


def test_prompts_are_computed_at_once_when_nothing_decodes() -> None:
    rig = Rig(prefill_interval=50, prefill_max_tokens=BLOCK_SIZE)
    add(rig, 4 * BLOCK_SIZE, answer=1)
    add(rig, 3, answer=1)
    assert rig.run() == 4 * BLOCK_SIZE + 3
    assert len(rig.steps) == 5


# -- what it costs


@pytest.mark.parametrize("policy", ["shortest", "priority", "lpm", "fair"])
def test_choosing_among_thousands_looks_at_few_requests(policy: str) -> None:
    """Counts how often any property of a waiting request is asked for while 100 steps admit one request each."""
    looked_at = Counter[str]()

    class Counted(SamplingParams):
        def __getattribute__(self, name: str) -> Any:
            looked_at[name] += name in ("tenant", "priority")
            return super().__getattribute__(name)

    class CountedRequest(Request):
        __slots__ = ()

        @property
        def num_prompt_tokens(self) -> int:
            looked_at["length"] += 1
            return 3

        @num_prompt_tokens.setter
        def num_prompt_tokens(self, value: int) -> None:
            pass

    queue, rng = Queue(policy), random.Random(0)
    for number in range(3_000):
        about = Counted(tenant=str(rng.randrange(1500)), priority=rng.randrange(100))
        queue.live.add(CountedRequest(number, [1] * 3, about))
    queue.begin_step()
    looked_at.clear()
    searched = 0
    for _ in range(100):
        queue.live.remove(queue.admit())
        searched += len(queue.searched)
    assert looked_at.total() + searched <= 100 * (64 if policy == "lpm" else 8)


def test_steps_that_wait_for_blocks_do_not_search_the_cache_again_under_lpm() -> None:
    queue = Queue("lpm")

    def searched() -> list[int]:
        queue.head()
        return list(queue.searched)

    for number in range(4):
        queue.add(number)
    assert searched() == [0, 1, 2, 3]
    first = queue.admit()
    assert [searched() for _ in range(3)] == [[1, 2, 3], [], []]  # it waits for blocks
    queue.add(4)
    assert [searched() for _ in range(2)] == [[4], []]
    first.token_ids.append(7)  # its prompt is complete
    assert [searched() for _ in range(2)] == [[1, 2, 3, 4], []]
    queue.live.remove(first)
    assert [searched() for _ in range(2)] == [[1, 2, 3, 4], []]


def test_requests_that_left_do_not_pile_up_in_the_heap() -> None:
    """Those with a large key, which never come first: aborted while shorter ones wait."""
    queue, lengths = Queue("shortest"), [4, 2, 3, 1]
    for number, length in enumerate(lengths):
        queue.add(number, length)
    for number in range(10, 1010):
        queue.add(number, 30)
        assert queue.head().request_id == 3
        queue.live.remove(queue.live.by_id[number])
    policy = queue.live.waiting.policy
    assert isinstance(policy, LeastKey)
    assert len(policy._heap) <= 2 * len(lengths) + 64 + 1
    assert [queue.admit().request_id for _ in lengths] == [3, 1, 2, 0]


@pytest.mark.parametrize(("place", "chosen"), [(63, 63), (64, 0)])
def test_the_longest_prefix_is_sought_among_the_64_that_have_waited_longest(place: int, chosen: int) -> None:
    rig = one_at_a_time("lpm")
    rig.add([7] * (2 * BLOCK_SIZE), 1)
    rig.run()
    for number in range(70):
        rig.add([7] * (2 * BLOCK_SIZE) + [8] if number == place else [100 + number] * 3, 1)
    assert rig.step().admitted == [1 + chosen]
