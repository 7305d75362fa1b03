from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import pytest

from roseplay.config import SamplingParams
from roseplay.traffic.arrivals import burst, poisson
from roseplay.traffic.prompts import KINDS, QUESTIONS, Prompt, PromptMix, TextPrompts, TokenPrompts
from roseplay.traffic.scenario import Scenario
from roseplay.traffic.scenarios import SCENARIOS
from roseplay.traffic.workload import make_workload


def build(seed: int):
    return make_workload(
        TokenPrompts(1000, body_tokens=4, seed=seed),
        poisson(20, 10.0, seed=seed),
        mix=KINDS["mix"],
        params=SamplingParams(temperature=0.7),
        seed=seed,
    )


def test_a_workload_is_decided_by_its_seed() -> None:
    assert build(5) == build(5)
    assert build(5) != build(6)


def test_requests_that_sample_have_seeds_of_their_own() -> None:
    workload = make_workload(TextPrompts("x"), burst(3), params=SamplingParams(temperature=1.0), seed=10)
    assert [arrival.params.seed for arrival in workload] == [10, 11, 12]
    given = make_workload(TextPrompts("x"), burst(2), params=SamplingParams(temperature=1.0, seed=4), seed=10)
    assert [arrival.params.seed for arrival in given] == [4, 4]


def test_every_fourth_prompt_of_a_mix_is_long() -> None:
    workload = make_workload(TextPrompts("x"), burst(5), mix=KINDS["mix"])
    assert [len(arrival.prompt.split()) // 64 for arrival in workload] == [0, 0, 0, 1, 0]


def test_every_scenario_makes_a_workload_and_two_settings_that_differ() -> None:
    for name, scenario in SCENARIOS.items():
        workload = scenario.workload(TokenPrompts(1000))
        arms = scenario.arms()
        assert scenario.name == name
        assert len(workload) == scenario.num_requests
        assert workload == scenario.workload(TokenPrompts(1000))
        before, after = ((knobs, scenario.settings(side)["config"]) for side, knobs in arms.items())
        assert before != after
        assert all(knobs.slow_motion == 1 for knobs in arms.values())
        assert all(arrival.params.ignore_eos for arrival in workload)


def test_the_scenarios_are_the_write_ups_workloads() -> None:
    admission = SCENARIOS["admission"].workload(TokenPrompts(50_257))
    assert (len(admission), sum(len(arrival.prompt) for arrival in admission)) == (32, 128)
    budget = SCENARIOS["token-budget"].workload(TokenPrompts(50_257))
    assert (len(budget), sum(len(arrival.prompt) for arrival in budget)) == (32, 632)
    assert budget[1].at_s == pytest.approx(0.02)
    assert sum(arrival.params.max_new_tokens for arrival in budget) == 1024
    dedup = SCENARIOS["dedup"].workload(TokenPrompts(50_257))
    assert len({tuple(arrival.prompt) for arrival in dedup}) == 1


def test_only_some_prompts_may_have_the_shared_head() -> None:
    made = SCENARIOS["eviction"].workload(TokenPrompts(1000, body_tokens=10))
    prompts = [arrival.prompt for arrival in made]
    users, others = prompts[::4], [prompt for index, prompt in enumerate(prompts) if index % 4]
    assert len({tuple(prompt[:256]) for prompt in users}) == 1
    assert len({tuple(prompt) for prompt in users}) == 10
    assert not any(prompt[:16] == users[0][:16] for prompt in others)
    pool = SCENARIOS["eviction"].config["num_blocks"] * 16
    assert all(sum(len(prompt) for prompt in prompts[i + 1 : i + 4]) > pool - 256 - 100 for i in range(4, 36, 4))


class Words:
    """A tokenizer whose tokens are words."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * len(text.split())


def words(prompt: Prompt) -> int:
    return len(str(prompt).split())


@pytest.mark.parametrize("name", ["swap", "token-budget", "eviction"])
@pytest.mark.parametrize("tokens", [64, 200, 1000])
def test_prompts_are_scaled_to_a_mean_length(name: str, tokens: int) -> None:
    """Whole texts of 8 to 12 words, with the proportions of the mix: long prompts, and a shared head, grow with it."""
    scenario = dataclasses.replace(SCENARIOS[name], prompt_tokens=tokens)
    made = scenario.workload(TextPrompts(QUESTIONS, tokenizer=Words()), count=words)
    lengths = [words(arrival.prompt) for arrival in made]
    assert sum(lengths) / len(lengths) == pytest.approx(tokens, abs=6)
    if name == "swap":
        assert max(lengths) - min(lengths) < 0.5 * tokens, "all are about as long"
    else:
        assert max(lengths) > 1.2 * tokens and min(lengths) < 0.5 * tokens
    assert len(made) == SCENARIOS[name].num_requests


def test_prompts_that_cannot_have_a_length_are_refused() -> None:
    swap, source = SCENARIOS["swap"], TextPrompts(QUESTIONS, tokenizer=Words())
    for tokens, room, said in (
        (4, 500, "its texts do not make prompts of 4 tokens, the nearest have 1"),
        (600, 500, "prompts of 600 tokens do not fit, there is room for 500"),
        (500, 500, "with a mean of 500 tokens, a prompt takes "),
    ):
        with pytest.raises(ValueError, match=f"Swap: {said}"):
            dataclasses.replace(swap, prompt_tokens=tokens).workload(source, room=room, count=words)


@pytest.mark.parametrize(("words_each", "fits"), [(74, False), (75, True), (125, True), (126, False)])
def test_prompts_may_differ_from_their_length_by_a_quarter(words_each: int, fits: bool) -> None:
    asked = dataclasses.replace(SCENARIOS["swap"], mix=PromptMix(unique=False), prompt_tokens=100, num_requests=2)
    source = TextPrompts(" ".join(["word"] * words_each))
    with nullcontext() if fits else pytest.raises(ValueError, match=f"the nearest have {words_each}"):
        assert len(asked.workload(source, count=words)) == 2


def test_a_scenario_says_what_to_look_for_and_what_it_costs() -> None:
    for scenario in SCENARIOS.values():
        assert scenario.card.endswith((".", "?"))
        assert len(scenario.look) == 2
        assert scenario.look[1].startswith("The price: ")


def test_prompts_are_scaled_down_to_the_room_there_is() -> None:
    source = TokenPrompts(1000, body_tokens=10)
    budget = SCENARIOS["token-budget"]
    whole = [len(arrival.prompt) for arrival in budget.workload(source, room=643)]
    assert (min(whole), max(whole)) == (13, 643)
    fitted = [len(arrival.prompt) for arrival in budget.workload(source, room=200)]
    assert min(fitted) == 13
    assert 180 <= max(fitted) <= 200
    head = [len(arrival.prompt) for arrival in SCENARIOS["shared-head"].workload(source, room=100)]
    assert 80 <= max(head) <= 100
    with pytest.raises(ValueError, match="room for 12"):
        budget.workload(source, room=12)
    counted = budget.workload(source, room=100, count=lambda prompt: 2 * len(prompt))
    assert max(len(arrival.prompt) for arrival in counted) <= 50


def test_a_scenario_s_traffic_can_be_changed_within_limits() -> None:
    poisson = SCENARIOS["poisson"]
    changed = poisson.changed({"num_requests": 5, "rate_per_s": 2.5, "max_new_tokens": 3})
    workload = changed.workload(TokenPrompts(1000), seed=4)
    assert [arrival.params.max_new_tokens for arrival in workload] == [3] * 5
    assert workload == changed.workload(TokenPrompts(1000), seed=4)
    assert [a.at_s for a in workload] != [a.at_s for a in changed.workload(TokenPrompts(1000), seed=5)]
    for params, words in (
        ({"num_requests": 0}, "num_requests should be greater than or equal to 1, not 0"),
        ({"num_requests": 2.5}, "num_requests should be a valid integer, not 2.5"),
        ({"num_requests": True}, "num_requests should be a valid integer, not True"),
        ({"rate_per_s": float("nan")}, "rate_per_s should be a finite number, not nan"),
        ({"rate_per_s": "fast"}, "rate_per_s should be a valid number, not 'fast'"),
        ({"colour": 1}, "no parameter colour"),
    ):
        with pytest.raises(ValueError, match=words):
            poisson.changed(params)
    with pytest.raises(ValueError, match="no parameter rate_per_s"):
        SCENARIOS["dedup"].changed({"rate_per_s": 2})


def test_a_scenario_with_a_mistake_in_it_is_refused() -> None:
    about = {"name": "x", "title": "x", "card": "x.", "look": ("x", "x")}
    with pytest.raises(ValueError, match="not a figure"):
        Scenario(**about, watch="speed")
    with pytest.raises(ValueError, match="not a figure"):
        Scenario(**about, watch="itl_p99_ms", price="speed")
    with pytest.raises(ValueError, match="unknown knob"):
        Scenario(**about, watch="itl_p99_ms", compared={"turbo": (True, False)})
    with pytest.raises(ValueError, match="num_blocks"):
        Scenario(**about, watch="itl_p99_ms", compared_config={"num_blocks": (2, 1)})
    with pytest.raises(ValueError, match="rate"):
        Scenario(**about, watch="itl_p99_ms", arrivals="poisson")


def test_a_scenarios_tenants_send_in_turn() -> None:
    sent = SCENARIOS["fair-tenants"].workload(TokenPrompts(50_257))
    assert [one.params.tenant for one in sent[:9]] == ["quiet", *["flood"] * 7, "quiet"]
    assert {one.params.tenant for one in SCENARIOS["poisson"].workload(TokenPrompts(50_257))} == {None}
