"""An engine over a server whose steps a probe tells: what is lost, restarted, refused, and changed. The probe is a
stand-in with real sockets.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi import Request
from starlette.middleware.base import BaseHTTPMiddleware

from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineError, EngineStartError
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent, TokensEvent
from roseplay.extras.servers.address import StepsAddress
from roseplay.extras.servers.engine import HttpEngine
from roseplay.extras.servers.timings import Timings
from roseplay.play.playground import Playground
from roseplay.recording.exports import KINDS, export
from roseplay.recording.reader import parse
from roseplay.recording.recorded_run import RecordedRun
from tests.extras.servers.servers import Script, attached, words
from tests.extras.servers.vllm.fake_probe import LIMITS, FakeProbe, probe
from tests.play.conftest import poll
from tests.waiting import wait_until

QUICK = Timings(steps_reply_s=4, steps_look_s=60, steps_again_s=0.01, look_s=0.05)
HASTY = replace(QUICK, steps_reply_s=0.3)  # where nothing replies
LOOKING = replace(QUICK, steps_look_s=0.05)  # where messages stop


def vllm(events: Any = ()) -> Script:
    return Script(events or words("Yes"), card={"owned_by": "vllm"})


@contextmanager
def followed(
    fake: FakeProbe, script: Script | None = None, key: str | None = None, timings: Timings = QUICK
) -> Iterator[HttpEngine]:
    with attached(script or vllm(), steps=StepsAddress(fake.address, key), timings=timings) as remote:
        hear(fake, remote)
        yield remote


def hear(fake: FakeProbe, remote: HttpEngine) -> None:
    """Wait until the engine hears what the probe publishes: it subscribes in its own time."""

    before = fake.step

    def heard() -> bool:
        fake.publish_step()
        return any(record.step_id > before for record in steps(remote))

    wait_until(heard)
    wait_for_step(remote, fake.step)


def steps(remote: HttpEngine) -> list[StepRecord]:
    return [event.record for event in remote.telemetry.since(0)[1] if isinstance(event, StepEvent)]


def wait_for_step(remote: HttpEngine, number: int) -> StepRecord:
    wait_until(lambda: any(record.step_id == number for record in steps(remote)), f"step {number}")
    return next(record for record in reversed(steps(remote)) if record.step_id == number)


def requests(remote: HttpEngine) -> list[tuple[int, str]]:
    events = remote.telemetry.since(0)[1]
    return [(event.request_id, event.kind) for event in events if isinstance(event, RequestEvent)]


@pytest.fixture
def fake() -> Iterator[FakeProbe]:
    with probe() as fake:
        yield fake


@pytest.fixture
def remote(fake: FakeProbe) -> Iterator[HttpEngine]:
    with followed(fake) as remote:
        yield remote


# -- attaching


def test_a_probe_adds_what_a_server_does_not_report(fake: FakeProbe, remote: HttpEngine) -> None:
    assert remote.capabilities.reasons.keys() == {"pause", "inspect", "prefix_hit_rate"}
    info = remote.info
    assert (info.block_size, info.num_blocks, info.max_model_len, info.dtype) == (16, 9, 512, "bfloat16")
    assert not any(isinstance(event, KnobEvent) for event in remote.telemetry.since(0)[1])
    fake.snapshot["missing"] = {"changed": "vLLM 0.9 does not tell the references\nof blocks"}
    fake.publish("reset")
    wait_until(lambda: not remote.capabilities.blocks)
    assert remote.capabilities.reasons["blocks"] == "vLLM 0.9 does not tell the references of blocks"


def test_who_comes_late_knows_the_requests_and_blocks(fake: FakeProbe) -> None:
    fake.step = 40
    fake.snapshot |= {"requests": [["x", 20, 21, 2, "running", 0, [1, 2]]], "pool": [[1, 1, 1], [2, 1, 0]], "free": 6}
    with attached(vllm(), steps=StepsAddress(fake.address), timings=QUICK) as remote:
        [first] = steps(remote)
        assert (first.step_id, first.new_pool, first.blocks_free, first.blocks_active) == (40, True, 6, 2)
        assert requests(remote) == [(0, "submitted")]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("tcp://127.0.0.1:9", "--steps: tcp://127.0.0.1:10 has not answered in 0.3 s: was vLLM started with the probe"),
        ("127.0.0.1:5601", "--steps: '127.0.0.1:5601' is no address of a probe: use one like tcp://host:5601"),
        ("tcp://host:65535", "is no address"),
    ],
)
def test_no_probe_is_told_in_one_line(address: str, told: str) -> None:
    with (
        pytest.raises(EngineStartError, match=told) as error,
        attached(vllm(), steps=StepsAddress(address), timings=HASTY),
    ):
        pass
    assert "\n" not in str(error.value)


def test_a_key_is_needed_where_the_probe_has_one() -> None:
    with probe(key="secret") as fake:
        for key, told in ((None, "does it need a key"), ("wrong", "is its key right")):
            refused = pytest.raises(EngineStartError, match=rf"{told} \(--steps-key\)")
            with refused, followed(fake, key=key, timings=HASTY):
                pass
        with followed(fake, key="secret") as remote:
            assert remote.set_knobs(max_batch_size=3).max_batch_size == 3


# -- what is lost


def test_after_a_gap_it_is_right_again(fake: FakeProbe, remote: HttpEngine) -> None:
    fake.publish_step(("x", 20, 0, 20), new=[["x", 20, 0, 0, 0]], blocks={"x": [1, 2]}, changed=[[1, 1, 0], [2, 1, 0]])
    wait_for_step(remote, fake.step)
    fake.lose()
    fake.snapshot |= {"requests": [["y", 16, 16, 1, "running", 0, [5]]], "pool": [[5, 1, 0]], "free": 7}
    fake.publish_step(("y", 1, 16, 16))
    wait_until(lambda: steps(remote)[-1].new_pool)
    assert [change.block for change in steps(remote)[-1].block_changes] == [5]
    assert requests(remote)[-2:] == [(0, "finished"), (1, "submitted")]
    fake.publish_step(("y", 1, 17, 16))
    assert wait_for_step(remote, fake.step).entries[0].request_id == 1


def test_what_the_snapshot_has_is_not_told_again(fake: FakeProbe, remote: HttpEngine) -> None:
    asked = len(fake.orders)
    fake.n -= 1
    fake.publish_step(("x", 1, 20, 20))
    fake.publish_step(("x", 1, 20, 20))
    wait_for_step(remote, fake.step)
    assert fake.step - 1 not in [record.step_id for record in steps(remote)]
    assert len(fake.orders) == asked


def test_a_loss_is_noticed_in_silence(fake: FakeProbe) -> None:
    with followed(fake, timings=LOOKING):
        asked = len(fake.orders)
        fake.lose()
        wait_until(lambda: len(fake.orders) > asked)
        assert fake.orders[-1] == {"ask": "snapshot"}


def test_vllm_may_end_and_come_back(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as both:
        first = both.enter_context(probe())
        remote = both.enter_context(followed(first, timings=replace(LOOKING, steps_reply_s=2)))
        first.publish_step(("x", 20, 0, 20), new=[["x", 20, 0, 0, 0]])
        wait_for_step(remote, first.step)
        first.close()
        wait_until(lambda: not remote.capabilities.steps)
        for name in ("steps", "blocks", "knobs"):
            assert "has not answered in 2 s" in remote.capabilities.reasons[name]
        assert requests(remote)[-1] == (0, "finished")
        with pytest.raises(ValueError, match="has not answered"):
            remote.set_knobs(max_batch_size=4)
        second = both.enter_context(probe(port=first.port, boot="second"))
        wait_until(lambda: remote.capabilities.steps)
        hear(second, remote)
    assert len([record for record in caplog.records if "has not answered" in record.message]) == 1


def test_a_restart_between_two_messages(fake: FakeProbe) -> None:
    with followed(fake, timings=LOOKING) as remote:
        fake.boot, fake.n, fake.step = "second", 0, 0
        fake.snapshot["limits"] = {**fake.snapshot["limits"], "max_num_seqs": 5}
        wait_until(lambda: remote.knobs.max_batch_size == 5)
        assert steps(remote)[-1].new_pool


def test_a_probe_that_switches_itself_off_says_why(fake: FakeProbe, remote: HttpEngine) -> None:
    fake.refusal = "the probe is off: no attribute 'running'"
    fake.publish("off", error="no attribute 'running'")
    wait_until(lambda: not remote.capabilities.steps)
    wait_until(lambda: remote.capabilities.reasons["steps"] == fake.refusal)


def test_a_bad_message_is_skipped_and_told_once(
    fake: FakeProbe, remote: HttpEngine, caplog: pytest.LogCaptureFixture
) -> None:
    for junk in (b"\xff\x00", b"[]", b'{"kind": "step", "n": 1e999}', b"1" * 5000):
        fake.send(junk)
    fake.publish_step(("x", -1, 0, 20))
    fake.publish_step(("x", 1, 20, 20))
    wait_until(lambda: steps(remote)[-1].new_pool, "the message that could not be read is a gap")
    fake.publish_step(("x", 1, 21, 20))
    assert wait_for_step(remote, fake.step).decode_tokens == 1
    assert len([record for record in caplog.records if "skipped" in record.message]) == 1


def test_a_snapshot_that_cannot_be_read_is_told_until_one_can(fake: FakeProbe, remote: HttpEngine) -> None:
    pool, fake.snapshot["pool"] = fake.snapshot["pool"], "many"
    fake.publish("reset")
    wait_until(lambda: not remote.capabilities.steps)
    assert "cannot be read" in remote.capabilities.reasons["steps"]
    fake.snapshot["pool"] = pool
    wait_until(lambda: remote.capabilities.steps)


def test_closing_does_not_wait_for_a_server_that_is_silent(fake: FakeProbe) -> None:
    slow = Timings(steps_reply_s=60, steps_look_s=0.05)
    with attached(vllm(), steps=StepsAddress(fake.address), timings=slow) as remote:
        fake.is_stuck, fake.has_orders = True, False
        wait_until(lambda: fake.has_orders, "it is asked whether it is there")
        remote.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "roseplay-steps"]
    with pytest.raises(EngineError, match="closed"):
        remote.set_knobs(max_batch_size=2)


# -- clocks


@pytest.mark.parametrize("ahead_s", [0, 3600, -2])
def test_times_are_on_our_clock(ahead_s: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), probe(ahead_ns=ahead_s * 10**9) as fake, followed(fake) as remote:
        before_ns = remote.clock.now_ns()
        fake.publish_step(("x", 1, 0, 1))
        step = wait_for_step(remote, fake.step)
        assert abs(step.end_ns - before_ns) < 10**9
    assert any("clock is another" in record.message for record in caplog.records) is (ahead_s != 0)


# -- requests


def named(script: Script, names: list[str]) -> Script:
    """Note the names that requests bring along."""

    async def note(request: Request, call_next: Any) -> Any:
        names.extend(request.headers.getlist("x-request-id"))
        return await call_next(request)

    script.app.add_middleware(BaseHTTPMiddleware, dispatch=note)
    return script


def test_our_requests_are_in_the_steps(fake: FakeProbe) -> None:
    async def answer() -> AsyncIterator[bytes]:
        yield words("Yes")[1]
        await asyncio.to_thread(wait_until, lambda: ready)
        for event in words(" no")[1:]:
            yield event

    names: list[str] = []
    ready: list[bool] = []
    with followed(fake, named(vllm(answer), names)) as remote:
        stream = remote.submit("Once")
        wait_until(lambda: names)
        name = f"cmpl-{names[0]}-0"
        fake.publish_step((name, 4, 0, 4), new=[[name, 4, 0, 0, 0]], tokens={name: [5]})
        wait_for_step(remote, fake.step)
        fake.publish_step((name, 1, 4, 4), tokens={name: [6]}, ended=[[name, "stop"]])
        wait_for_step(remote, fake.step)
        ready.append(True)
        assert stream.result(timeout=30).text == "Yes no"
        assert stream.metrics.prompt_tokens == 4 and stream.metrics.scheduled_ns is not None
        events = remote.telemetry.since(0)[1]
        told = [
            (event.record.step_id, token.request_id)
            for event in events
            if isinstance(event, StepEvent)
            for token in event.tokens
        ]
        arrived = sum(len(event.tokens) for event in events if isinstance(event, TokensEvent))
        assert len(told) + arrived == 2 and told[-1] == (fake.step, stream.request_id)
        second = remote.submit("Twice")
        wait_until(lambda: len(names) == 2)
        assert names[1] != names[0]
        second.cancel()


def test_requests_of_others_are_drawn_but_are_not_ours(fake: FakeProbe, remote: HttpEngine) -> None:
    fake.publish_step(("x", 20, 0, 20), new=[["x", 20, 0, 0, 0]], tokens={"x": [5]})
    wait_for_step(remote, fake.step)
    [(number, _), *_] = requests(remote)
    assert remote.num_unfinished == 0
    assert remote.abort(number) is False and remote.abort_all() == 0
    assert remote.submit("Once").request_id != number
    fake.publish_step(("x", 1, 20, 20), tokens={"x": [5]}, ended=[["x", "stop"]])
    wait_until(lambda: (number, "finished") in requests(remote))


def test_the_page_shows_and_records_them(fake: FakeProbe, remote: HttpEngine) -> None:
    playground = Playground(remote)
    name = "chatcmpl-of-somebody"
    fake.publish_step(
        (name, 20, 16, 36), new=[[name, 36, 16, 10**6, 0]], blocks={name: [1, 2, 3]}, free=5,
        changed=[[1, 1, 1], [2, 1, 1], [3, 1, 0]], tokens={name: [5]},
    )  # fmt: skip
    wait_for_step(remote, fake.step)
    stats = {"running": 1, "waiting": 0, "step": fake.step, "kv_active": 3, "kv_free": 5}

    def shown() -> dict[str, Any]:
        while playground.tick():
            pass
        snapshot: dict[str, Any] = poll(playground)["snapshot"]
        assert "steps" not in snapshot["absent"]
        return {name: snapshot["stats"].get(name) for name in stats}

    wait_until(lambda: shown() == stats)
    fake.publish_step((name, 1, 36, 36), tokens={name: [5]}, ended=[[name, "length"]], changed=[[1, 0, 1]], running=0)
    wait_until(lambda: playground.tick() is not None and requests(remote)[-1][1] == "finished")
    while playground.tick():
        pass
    recording = parse(playground.recording(), "run.jsonl")
    [request] = RecordedRun(recording).requests.values()
    assert (request.kind, request.prompt_tokens, request.cached, request.tokens) == ("api", 36, 16, 2)
    assert request.queue_ms == 1 and request.ttft_ms is not None and request.reason == "length"
    tokens = dict.fromkeys(("step_max_tokens", "prefill_max_tokens", "chunk_max_tokens"), 2048)
    assert recording.info.knob_limits == {"max_batch_size": 64, "prefix_cache": 1, **tokens}
    for kind in KINDS:
        assert export(kind, playground.recording()), kind
    playground.close()


# -- settings


def test_limits_are_knobs(fake: FakeProbe, remote: HttpEngine) -> None:
    assert (remote.knobs.max_batch_size, remote.knobs.step_max_tokens) == (64, 2048)
    fixed = remote.knobs.prefix_cache, remote.knobs.same_step_sharing, remote.knobs.scheduling_policy
    assert fixed == (True, False, "priority")
    changed = remote.set_knobs(**{**remote.knobs.to_dict(), "step_max_tokens": 64})
    assert fake.orders[-1]["set"].items() >= {"max_num_batched_tokens": 64, "max_num_seqs": 64}.items()
    assert changed == remote.knobs and changed.step_max_tokens == 64
    assert remote.set_knobs(step_max_tokens=None).step_max_tokens == 2048
    for tokens, threshold in ((128, 128), (None, 0)):  # no threshold is 0 there
        assert remote.set_knobs(chunk_max_tokens=tokens).chunk_max_tokens == tokens
        assert fake.orders[-1]["set"]["long_prefill_token_threshold"] == threshold
    fake.set_limits(max_num_seqs=8)  # by somebody else
    wait_until(lambda: remote.knobs.max_batch_size == 8)
    told = [event for event in remote.telemetry.since(0)[1] if isinstance(event, KnobEvent)]
    assert [event.changed for event in told] == [
        {"step_max_tokens": (2048, 64)}, {"step_max_tokens": (64, 2048)}, {"chunk_max_tokens": (None, 128)},
        {"chunk_max_tokens": (128, None)}, {"max_batch_size": (64, 8)},
    ]  # fmt: skip
    assert {event.step_id for event in told} == {fake.step + 1}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step_max_tokens": 4096}, "step_max_tokens is 4096: use at most 2048, which the server was started with"),
        (
            {"same_step_sharing": True},
            "same_step_sharing cannot be changed while the server runs, only max_batch_size, step_max",
        ),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"speed": 1}, "unknown knob speed"),
    ],
)
def test_what_cannot_be_set_is_refused_before_it_is_sent(
    fake: FakeProbe, remote: HttpEngine, changes: dict[str, Any], told: str
) -> None:
    asked = list(fake.orders)
    with pytest.raises(ValueError, match=told):
        remote.set_knobs(**{"max_batch_size": 16, **changes})
    assert fake.orders == asked


def test_leased_limits_are_set_again_until_they_are_set_for_good(fake: FakeProbe, remote: HttpEngine) -> None:
    remote.lease_s = 0.2
    remote.set_knobs(prefill_max_tokens=64)
    ours = dict(LIMITS)
    leased = {"set": {**ours, "prompt_tokens": 64}, "lease_s": 0.2}
    wait_until(lambda: fake.orders.count(leased) > 2)
    remote.lease_s = 0.0
    remote.set_knobs(prefill_max_tokens=None)
    assert fake.orders[-1] == {"set": ours, "lease_s": 0.0}
    hear(fake, remote)
    assert fake.orders[-1]["lease_s"] == 0.0


def test_a_refusal_of_the_probe_is_passed_on(fake: FakeProbe, remote: HttpEngine) -> None:
    fake.refusal = "max_num_seqs cannot change now"
    with pytest.raises(ValueError, match="max_num_seqs cannot change now"):
        remote.set_knobs(max_batch_size=16)


def test_the_prefix_cache_is_cleared_by_an_order(fake: FakeProbe, remote: HttpEngine) -> None:
    remote.clear_cache()
    assert fake.orders[-1] == {"clear": "prefix_cache"}


def test_without_the_prefix_cache_a_request_has_a_salt_of_its_own(fake: FakeProbe) -> None:
    with followed(fake, script := vllm()) as remote:
        for shares in (True, False, False, True):
            assert remote.set_knobs(prefix_cache=shares).prefix_cache == shares
            stream = remote.submit("What is TTFT?")
            stream.result(30)
            assert (stream.miss is None) == shares
    salts = [body.get("cache_salt") for body in script.bodies]
    assert salts[0] is salts[3] is None and salts[1] and salts[2] and salts[1] != salts[2]


def test_a_vllm_without_a_prefix_cache_cannot_have_one(fake: FakeProbe) -> None:
    fake.snapshot["settings"]["enable_prefix_caching"] = False
    with followed(fake, script := vllm()) as remote:
        assert not remote.knobs.prefix_cache
        with pytest.raises(ValueError, match="prefix_cache cannot be changed while the server runs"):
            remote.set_knobs(prefix_cache=True)
        remote.set_knobs(max_batch_size=16)
        remote.submit("What is TTFT?").result(30)
    assert "cache_salt" not in script.bodies[-1]


@pytest.mark.parametrize(("device", "sent"), [("cuda", 7), ("cpu", None)])
def test_seeds_are_not_sent_to_a_cpu(fake: FakeProbe, device: str, sent: int | None) -> None:
    fake.snapshot["settings"]["device_type"] = device
    script = vllm()
    with followed(fake, script) as remote:
        remote.submit("What is TTFT?", SamplingParams(seed=7)).result(30)
    assert script.bodies[-1].get("seed") == sent
