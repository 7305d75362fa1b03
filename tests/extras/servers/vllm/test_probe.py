"""The probe inside vLLM, over a stand-in for vLLM: what it tells, what it refuses, and that it harms nothing."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import logging
import random
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zmq

from roseplay.extras.servers import vllm
from tests.extras.servers.vllm.stand_in import AsyncScheduler, Reads, Scheduler, config, install
from tests.extras.servers.vllm.suite.probe_reader import Mirror, Reader, check
from tests.waiting import wait_until

FILE = Path(vllm.__file__).parent / "inside" / "roseplay_probe.py"
# What the engine calls, which is there, or the stand-in itself.
ENGINE = set("schedule update_from_output reset_prefix_cache shutdown add finish execute compiled".split())
ENGINE |= {"_allocate", "_release", "_block"}


RECORDED = Path(__file__).parent / "data" / "vllm_steps.jsonl"  # by vllm/suite/record.py
PORTS = itertools.count(random.randrange(10_000, 30_000, 4), 4)  # below those that clients are given


def free_port() -> int:
    """A port that is free, as are the next three."""
    return next(port for port in PORTS if not any(port_is_used(port + more) for more in range(4)))


def port_is_used(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    install(monkeypatch)
    spec = importlib.util.spec_from_file_location("roseplay_probe", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "roseplay_probe", module)
    spec.loader.exec_module(module)
    yield module


class Engine:
    """vLLM's loop, with the probe."""

    def __init__(self, module: ModuleType, reads: Reads | None = None, **options: Any) -> None:
        self.reads = reads or Reads()
        scheduler = {name: options.pop(name) for name in ("blocks", "drafts") if name in options}
        self.scheduler = module.ProbedScheduler(vllm_config=config(self.reads, **options), **scheduler)
        self.tokens: dict[str, list[int]] = {}

    def step(self, between: Callable[[], object] = lambda: None) -> dict[str, int]:
        """One step; returns the tokens that it computed of each request."""
        output = self.scheduler.schedule(False)
        sampled = self.scheduler.execute(output)
        between()
        for results in self.scheduler.update_from_output(output, sampled).values():
            for row in vars(results)["outputs"]:
                self.tokens.setdefault(vars(row)["request_id"], []).extend(vars(row)["new_token_ids"])
        return vars(output)["num_scheduled_tokens"]

    def run(self) -> list[dict[str, int]]:
        """Steps until nothing is left; fails if a step computes nothing although requests run."""
        steps = []
        while vars(self.scheduler)["requests"]:
            steps.append(self.step())
            assert steps[-1]
            assert len(steps) < 1000
        return steps

    def limits(self) -> tuple[int, int, int]:
        values = vars(self.scheduler)
        threshold = vars(vars(values["vllm_config"])["scheduler_config"])["long_prefill_token_threshold"]
        return values["max_num_scheduled_tokens"], values["max_num_active_reqs"], threshold


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    port = free_port()
    monkeypatch.setenv("ROSEPLAY_STEPS", f"tcp://127.0.0.1:{port}")
    return port


@pytest.fixture
def engine(module: ModuleType, port: int) -> Iterator[Engine]:
    engine = Engine(module)
    yield engine
    engine.scheduler.shutdown()


@pytest.fixture
def reader(port: int) -> Iterator[Reader]:
    with closing(Reader(port)) as reader:
        yield reader


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name.startswith("vllm")]


def follow(reader: Reader, mirror: Mirror) -> list[dict[str, Any]]:
    messages = reader.quiet()
    for message in messages:
        mirror.add(message)
        mirror.check()
    return messages


def test_steps_add_up_to_the_pool_and_to_the_tokens(engine: Engine, reader: Reader) -> None:
    mirror = Mirror.of(reader.attached())
    for number in range(6):
        engine.scheduler.add(f"r{number}", prompt=5 + 3 * number, output=4 + number)
    tokens: dict[str, list[int]] = {}
    while vars(engine.scheduler)["requests"]:
        engine.step()
        message = reader.next()
        mirror.add(message)
        mirror.check()
        for name, ids in message["tokens"].items():
            tokens.setdefault(name, []).extend(ids)
        assert mirror == Mirror.of(reader.snapshot())
    assert tokens == engine.tokens
    assert mirror.held == {}


def test_preemption_abort_and_speculation(module: ModuleType, port: int, reader: Reader) -> None:
    engine = Engine(module, blocks=12, drafts=2)
    mirror = Mirror.of(reader.attached())
    for number in range(3):
        engine.scheduler.add(f"r{number}", prompt=9, output=20)
    for _ in range(4):
        engine.step()
    engine.scheduler.finish("r0")
    engine.run()
    messages = follow(reader, mirror)
    assert mirror == Mirror.of(reader.snapshot())
    assert {row[0]: row[1] for message in messages for row in message["ended"]} == {
        "r0": "abort",
        "r1": "length",
        "r2": "length",
    }
    preempted = [name for message in messages for name in message["preempted"]]
    assert preempted and preempted == [name for message in messages for name in message["resumed"]]
    entries = [entry for message in messages for entry in message["entries"]]
    assert {(entry[4], entry[5]) for entry in entries if entry[4]} >= {(2, 1)}
    engine.scheduler.shutdown()


def test_a_snapshot_between_scheduling_and_the_output_is_as_of_the_last_message(engine: Engine, reader: Reader) -> None:
    """Otherwise the step that is being computed would be counted twice."""
    reader.attached()
    engine.scheduler.add("a", prompt=20, output=6)
    engine.step()
    engine.scheduler.add("b", prompt=9, output=2)
    taken: list[Mirror] = []
    engine.step(between=lambda: taken.append(Mirror.of(reader.snapshot())))
    engine.run()
    (mirror,) = taken
    assert set(mirror.held) == {"a"} and mirror.computed == {"a": 20}
    for message in reader.quiet():
        if message["n"] > mirror.n:
            mirror.add(message)
    assert mirror == Mirror.of(reader.snapshot())


def test_steps_that_are_computed_at_the_same_time(engine: Engine, reader: Reader) -> None:
    """As with asynchronous scheduling: a step is scheduled before the output of the last one has come."""
    reader.order(set={"max_num_batched_tokens": 8})
    mirror = Mirror.of(reader.attached())
    for name in ("a", "b", "left"):
        engine.scheduler.add(name, prompt=19, output=3)
    in_flight: deque[tuple[Any, Any]] = deque()
    for _ in range(40):
        output = engine.scheduler.schedule()
        in_flight.append((output, engine.scheduler.execute(output)))
        if any(vars(new)["req_id"] == "left" for new in vars(output)["scheduled_new_reqs"]):
            engine.scheduler.finish("left")  # admitted, but that has not been told yet
        if len(in_flight) == 2:
            engine.scheduler.update_from_output(*in_flight.popleft())
    assert vars(engine.scheduler)["requests"] == {}
    messages = reader.quiet()
    for message in messages:
        mirror.add(message)
    assert mirror.held == {} and mirror == Mirror.of(reader.snapshot())
    assert {name for message in messages for name, *_ in message["new"]} == {"a", "b", "left"}
    assert {(name, why) for message in messages for name, why in message["ended"]} == {
        ("a", "length"),
        ("b", "length"),
        ("left", "abort"),
    }


def test_messages_are_numbered_without_gaps_and_say_which_engine(engine: Engine, reader: Reader) -> None:
    first = reader.attached()["n"] + 1
    engine.scheduler.add("a", prompt=5, output=5)
    engine.run()
    reader.order(set={"max_num_seqs": 3})
    assert reader.order(clear="prefix_cache") == {"cleared": True}
    messages = reader.quiet()
    assert [message["n"] for message in messages] == list(range(first, first + len(messages)))
    assert {message["boot"] for message in messages} == {reader.order(ask="clock")["boot"]}
    assert [message["kind"] for message in messages[-2:]] == ["limits", "reset"]
    assert reader.snapshot()["cached"] == 0


def test_waiting_is_told_by_reason(engine: Engine, reader: Reader) -> None:
    reader.attached()
    engine.scheduler.add("a", prompt=5, output=3)
    engine.scheduler.add("grammar", prompt=5, output=3, grammar=True)
    engine.scheduler.add("behind", prompt=5, output=3)
    engine.step()
    message = reader.next()
    assert (message["running"], message["waiting"]) == (1, {"": 1, "grammar": 1})
    assert message["new"][0][3] > 0.9e9  # it has arrived a second ago
    assert message["new"][0][5] == [0x0101_0101_0101]  # of the one whole block of its prompt
    engine.scheduler.compiled()
    engine.run()


def drive(engine: Engine, reader: Reader | None, gone: tuple[str, str] | None = None) -> dict[str, Any]:
    """Serves so that everything is read that ever is; an attribute may go meanwhile. Returns the last snapshot."""
    for number in range(3):
        engine.scheduler.add(f"r{number}", prompt=9, output=20)
    for _ in range(3):
        engine.step()
    if reader is not None:
        reader.order(set={"max_num_batched_tokens": 4})
        reader.order(ask="snapshot")
    if gone is not None:
        engine.reads.removed.add(gone)
    engine.step()
    engine.scheduler.finish("r0")
    engine.scheduler.add("grammar", prompt=5, output=3, grammar=True)
    engine.step()
    snapshot = reader.order(ask="snapshot") if reader is not None else {}
    engine.scheduler.compiled()
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    engine.scheduler.shutdown()
    assert engine.tokens["r1"] == list(range(100, 120)) == engine.tokens["r2"]
    assert engine.tokens["grammar"] == [100, 101, 102]
    return snapshot


# Where these are not, vLLM does not have the feature, or another attribute has what is wanted.
ELSEWHERE = {
    ("config", "diffusion_config"),
    ("scheduler_config", "async_scheduling"),
    ("scheduler", "max_num_active_reqs"),
    ("request", "num_output_placeholders"),
    ("sampling_params", "seed"),
}


@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "while it serves"])
def test_an_attribute_that_is_missing_harms_nothing(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at_start: bool
) -> None:
    """Each attribute that is read, in turn: all tokens come, and the field is named, or the probe is off with one line."""
    caplog.set_level(logging.INFO, "vllm")

    def driven(reads: Reads, gone: tuple[str, str] | None) -> tuple[Engine, dict[str, Any]]:
        monkeypatch.setenv("ROSEPLAY_STEPS", f"tcp://127.0.0.1:{(port := free_port())}")
        engine = Engine(module, reads, blocks=12, drafts=2)
        with closing(Reader(port)) as reader:
            return engine, drive(engine, None if lines(caplog) else reader, gone)

    everything, complete = driven(Reads(), None)
    assert complete["missing"] == {} and lines(caplog) == []
    places = {place for place in everything.reads.seen if place[1] not in ENGINE}
    assert len(places) > 45, places
    off = set()
    for place in sorted(places):
        caplog.clear()
        reads = Reads()
        reads.removed |= {place} if at_start else set()
        engine, snapshot = driven(reads, None if at_start else place)
        if lines(caplog):
            (line,) = lines(caplog)
            assert place[1] in line and engine.limits() == (32, 8, 0), (place, line)
            off.add(place)
        elif at_start and place not in ELSEWHERE:
            unset = {name for name, value in complete["settings"].items() if snapshot["settings"][name] != value}
            assert unset or place[1] in " ".join(snapshot["missing"].values()), place
            assert {snapshot["settings"][name] for name in unset} <= {None}
    assert ("output", "num_scheduled_tokens") in off
    assert not off & {("request", "arrival_time"), ("block", "ref_cnt"), ("output", "scheduled_spec_decode_tokens")}


def test_an_error_of_the_scheduler_passes_untouched(engine: Engine, reader: Reader) -> None:
    engine.scheduler.add("a", prompt=5, output=3)
    vars(engine.scheduler)["max_num_running_reqs"] = 0
    with pytest.raises(AssertionError):
        engine.step()
    vars(engine.scheduler)["max_num_running_reqs"] = 8
    assert reader.order(ask="clock").keys() == {"now_ns", "n", "boot", "rank"}  # the lock is free again


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not an order"),
        (b"{", "not an order"),
        (b"[" * 4000, "not an order"),
        (b"\xff", "not an order"),
        (b"{}", "one of ask, set and clear"),
        (b'{"ask": "clock", "clear": "prefix_cache"}', "one of ask, set and clear"),
        (b'{"set": {}}', "one of ask, set and clear"),
        (b'{"ask": "everything"}', "not an order"),
        (b'{"run": "rm"}', "unknown field `run`"),
        (b'{"set": {"max_num_seqs": true}}', "Expected `int`"),
        (b'{"set": {"max_num_seqs": 1.5}}', "Expected `int`"),
        (b'{"set": {"max_num_seqs": 0}}', "max_num_seqs must be 1 to 8"),
        (b'{"set": {"max_num_seqs": 9}}', "max_num_seqs must be 1 to 8"),
        (b'{"set": {"max_num_batched_tokens": 33}}', "max_num_batched_tokens must be 1 to 32"),
        (b'{"set": {"long_prefill_token_threshold": -1}}', "long_prefill_token_threshold must be 0 to 32"),
        (b'{"set": {"max_num_seqs": 3, "max_num_batched_tokens": 0}}', "max_num_batched_tokens must be 1 to 32"),
        (b'{"set": {"max_num_seqs": 99999999999999999999999}}', ""),
        (b'{"set": {"gpu_memory": 1}}', "not an order"),
        (b'{"set": {"max_num_seqs": 3}, "lease_s": -1}', "not an order"),
        (b'{"clear": "prefix_cache", "lease_s": 5}', "lease_s only beside set"),
    ],
)
def test_what_is_no_order_is_refused_in_one_line(engine: Engine, reader: Reader, text: bytes, why: str) -> None:
    refused = reader.raw(text)
    assert refused.keys() == {"error"} and why in refused["error"] and "\n" not in refused["error"]
    assert reader.snapshot()["limits"] == reader.snapshot()["most"] | {"long_prefill_token_threshold": 0}


def test_an_order_that_is_too_long_ends_its_sender_only(engine: Engine, port: int) -> None:
    with closing(Reader(port)) as reader:
        reader.orders.rcvtimeo = 300
        with pytest.raises(zmq.Again):
            reader.raw(b" " * 5000)
    with closing(Reader(port)) as reader:
        assert "boot" in reader.order(ask="clock")


def test_limits_are_kept_and_put_back(engine: Engine, reader: Reader) -> None:
    assert reader.order(set={"max_num_seqs": 2, "max_num_batched_tokens": 6}) == {
        "limits": {
            "max_num_batched_tokens": 6,
            "max_num_seqs": 2,
            "long_prefill_token_threshold": 0,
            "prompt_tokens": 32,
        }
    }
    for number in range(4):
        engine.scheduler.add(f"r{number}", prompt=12, output=3)
    steps = engine.run()
    assert max(len(step) for step in steps) == 2
    assert max(sum(step.values()) for step in steps) == 6
    reader.order(set={"max_num_seqs": 8, "max_num_batched_tokens": 32})
    engine.scheduler.add("last", prompt=30, output=1)
    assert engine.run()[0] == {"last": 30}
    assert engine.limits() == (32, 8, 0)


@pytest.mark.parametrize("drafts", [0, 2])
def test_limits_below_what_runs_let_all_go_on(module: ModuleType, port: int, reader: Reader, drafts: int) -> None:
    engine = Engine(module, blocks=80, drafts=drafts)
    for number in range(6):
        engine.scheduler.add(f"r{number}", prompt=4, output=30)
    while any(len(engine.tokens.get(f"r{number}", ())) == 0 for number in range(6)):
        engine.step()
    reader.order(set={"max_num_seqs": 1, "max_num_batched_tokens": 1})
    engine.scheduler.add("new", prompt=9, output=4)
    for _ in range(3):
        assert engine.step().keys() == {f"r{number}" for number in range(6)}  # none stalls, and none is added
    steps = engine.run()
    assert steps[-1].keys() == {"new"}
    assert all(len(engine.tokens[f"r{number}"]) == 30 for number in range(6))
    assert reader.snapshot()["limits"]["max_num_seqs"] == 1
    engine.scheduler.shutdown()


def test_a_prompt_before_others_leaves_them_their_tokens(engine: Engine, reader: Reader) -> None:
    """With a threshold, a long prompt may run before short requests; a small limit must not give it everything."""
    reader.order(set={"long_prefill_token_threshold": 8})
    engine.scheduler.add("long", prompt=100, output=1)
    engine.scheduler.add("short", prompt=4, output=20)
    engine.step()
    reader.order(set={"max_num_batched_tokens": 4})
    for _ in range(5):
        assert engine.step() == {"long": 3, "short": 1}


def test_a_limit_of_prompt_tokens_is_beside_the_decodes(engine: Engine, reader: Reader) -> None:
    for name in "abc":
        engine.scheduler.add(name, prompt=4, output=20)
    engine.step()
    reader.order(set={"prompt_tokens": 5})
    engine.scheduler.add("first", prompt=7, output=1)
    engine.scheduler.add("second", prompt=7, output=1)
    assert [sum(step.values()) for step in (engine.step(), engine.step(), engine.step())] == [3 + 5, 3 + 5, 3 + 4]
    engine.run()
    reader.order(set={"prompt_tokens": 32})
    engine.scheduler.add("last", prompt=30, output=1)
    assert engine.run()[0] == {"last": 30}


def test_leased_limits_go_back_unless_they_are_set_again(engine: Engine, reader: Reader) -> None:
    def seqs() -> int:
        return int(reader.snapshot()["limits"]["max_num_seqs"])

    reader.order(set={"max_num_seqs": 4})
    reader.order(set={"max_num_seqs": 2}, lease_s=60)
    reader.order(set={"max_num_seqs": 3}, lease_s=0.01)
    wait_until(lambda: seqs() != 3)
    assert seqs() == 4  # those before the first of them
    reader.order(set={"max_num_seqs": 2}, lease_s=0.05)
    reader.order(set={"max_num_seqs": 5})  # for good
    reader.quiet(400)
    assert seqs() == 5


def test_older_versions_limit_what_runs_instead_of_what_is_admitted(
    module: ModuleType, port: int, reader: Reader
) -> None:
    reads = Reads()
    reads.removed.add(("scheduler", "max_num_active_reqs"))
    engine = Engine(module, reads)
    for number in range(5):
        engine.scheduler.add(f"r{number}", prompt=4, output=5)
    engine.step()
    reader.order(set={"max_num_seqs": 2})
    engine.step()
    assert vars(engine.scheduler)["max_num_running_reqs"] == 5  # vLLM asserts that no more run
    engine.run()
    engine.step()
    assert vars(engine.scheduler)["max_num_running_reqs"] == 2
    engine.scheduler.shutdown()


@pytest.mark.parametrize(("device", "largest"), [("cpu", 12), ("cuda", 6)])
def test_a_cpu_splits_no_prompt_while_a_request_has_a_seed(
    module: ModuleType, port: int, reader: Reader, device: str, largest: int
) -> None:
    engine = Engine(module, device=device)
    reader.order(set={"max_num_batched_tokens": 6})
    engine.scheduler.add("seeded", prompt=12, output=2, seed=0)
    assert max(step.get("seeded", 0) for step in engine.run()) == largest
    engine.scheduler.add("another", prompt=12, output=2)
    assert max(sum(step.values()) for step in engine.run()) == 6
    engine.scheduler.shutdown()


@pytest.mark.parametrize("off", ["enable_chunked_prefill", "disable_chunked_mm_input"])
def test_prompts_that_must_not_be_split_keep_their_limits(
    module: ModuleType, port: int, reader: Reader, off: str
) -> None:
    engine = Engine(module, **{off: off == "disable_chunked_mm_input"})
    assert "must be 32 to 32" in reader.order(set={"max_num_batched_tokens": 31})["error"]
    assert "must be 0 to 0" in reader.order(set={"long_prefill_token_threshold": 8})["error"]
    assert "limits" in reader.order(set={"max_num_seqs": 2})
    engine.scheduler.shutdown()


def test_after_it_is_off_orders_are_answered_and_limits_are_vllms(
    engine: Engine, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    reader.attached()
    reader.order(set={"max_num_seqs": 2})
    engine.scheduler.add("a", prompt=5, output=3)
    engine.step()
    assert engine.limits()[1] == 2
    reader.quiet()
    engine.reads.removed.add(("request", "num_computed_tokens"))
    engine.step()
    assert engine.limits() == (32, 8, 0)
    (message,) = reader.quiet()
    assert message["kind"] == "off" and "num_computed_tokens" in message["error"]
    for order in ({"ask": "snapshot"}, {"ask": "clock"}, {"set": {"max_num_seqs": 2}}, {"clear": "prefix_cache"}):
        assert "num_computed_tokens" in reader.order(**order)["error"]
    engine.run()
    assert engine.limits() == (32, 8, 0) and len(lines(caplog)) == 1


def test_an_address_in_use_switches_it_off(
    module: ModuleType, engine: Engine, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    other = Engine(module)
    (line,) = lines(caplog)
    assert "Address already in use" in line
    other.scheduler.add("a", prompt=5, output=3)
    other.run()
    assert other.tokens["a"] == [100, 101, 102]
    assert reader.snapshot()["step"] == 0


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://0.0.0.0:5601", "set ROSEPLAY_STEPS_KEY"),
        ("tcp://*:5601", "set ROSEPLAY_STEPS_KEY"),
        ("tcp://[::]:5601", "set ROSEPLAY_STEPS_KEY"),
        ("tcp://example.org:5601", "ValueError"),
        ("ipc:///tmp/steps", "must be tcp://ADDRESS:PORT"),
        ("tcp://127.0.0.1", "must be tcp://ADDRESS:PORT"),
        ("tcp://127.0.0.1:99999", "ValueError"),
    ],
)
def test_an_address_that_will_not_do_switches_it_off(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str, why: str
) -> None:
    monkeypatch.setenv("ROSEPLAY_STEPS", address)
    engine = Engine(module)
    (line,) = lines(caplog)
    assert why in line
    engine.scheduler.add("a", prompt=5, output=3)
    engine.run()


def test_a_key_is_asked_for_on_both_sockets(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("ROSEPLAY_STEPS", f"tcp://0.0.0.0:{port}")
    monkeypatch.setenv("ROSEPLAY_STEPS_KEY", "rose")
    engine = Engine(module)
    with (
        closing(Reader(port, "rose")) as reader,
        closing(Reader(port, "thorn")) as wrong,
        closing(Reader(port)) as none,
    ):
        reader.attached()
        for other in (wrong, none):
            other.orders.sndtimeo = other.orders.rcvtimeo = 200
            with pytest.raises(zmq.Again):
                other.order(ask="clock")
        engine.scheduler.add("a", prompt=5, output=3)
        engine.run()
        assert len(reader.quiet()) == 3
        assert wrong.quiet(100) == none.quiet(100) == []
    engine.scheduler.shutdown()


def test_the_engine_has_time_between_two_orders(
    module: ModuleType, engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for snapshots without end waits nine times as long as each took, up to a second."""
    slept: list[float] = []
    clock = {**vars(time), "sleep": slept.append, "monotonic": map((0.1).__mul__, itertools.count()).__next__}
    monkeypatch.setattr(module, "time", SimpleNamespace(**clock))
    for _ in range(3):
        reader.snapshot()
    wait_until(lambda: len(slept) == 3)
    assert slept == pytest.approx([0.9, 0.9, 0.9])


def test_each_rank_has_its_own_ports(module: ModuleType, engine: Engine, port: int) -> None:
    second = Engine(module, rank=1)
    with closing(Reader(port + 2)) as reader:
        assert reader.snapshot()["rank"] == 1
    second.scheduler.shutdown()


def test_the_scheduler_is_the_one_that_vllm_would_take(module: ModuleType, engine: Engine) -> None:
    assert type(engine.scheduler) is Scheduler
    assert type(Engine(module, asynchronous=True).scheduler) is AsyncScheduler


def test_the_sockets_are_free_again_after_a_shutdown(module: ModuleType, port: int, reader: Reader) -> None:
    Engine(module).scheduler.shutdown()
    wait_until(lambda: not port_is_used(port + 1))
    engine = Engine(module)
    assert "boot" in reader.order(ask="clock")
    engine.scheduler.shutdown()


def test_a_reader_that_does_not_read_is_not_waited_for(engine: Engine, reader: Reader) -> None:
    before = reader.attached()["n"]
    reader.steps.rcvhwm = 1
    for _ in range(300):
        engine.scheduler.add("a", prompt=1, output=20)
        engine.run()
    assert reader.order(ask="clock")["n"] == before + 6000


def test_it_is_one_small_module_that_needs_only_what_vllm_has() -> None:
    text = FILE.read_text()
    assert text.count("\n") <= 350
    imports = {
        node.names[0].name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {str(name).partition(".")[0] for name in imports} - sys.stdlib_module_names == {"msgspec", "zmq"}


def test_a_client_that_leaves_while_its_step_is_computed(engine: Engine, reader: Reader) -> None:
    mirror = Mirror.of(reader.attached())
    for name in "ab":
        engine.scheduler.add(name, prompt=9, output=9)
    engine.step()
    engine.step(between=lambda: engine.scheduler.finish("a"))
    engine.run()
    messages = follow(reader, mirror)
    assert messages[1]["ended"] == [["a", "abort"]]
    assert [name for message in messages for name, _ in message["ended"]] == ["a", "b"]


def test_the_recorded_messages_of_a_real_vllm_add_up() -> None:
    snapshot, *messages = (json.loads(line) for line in RECORDED.read_text().splitlines())
    check(snapshot, *messages)
    assert {message["kind"] for message in messages} == {"step", "limits", "reset"}
    for field in ("preempted", "resumed", "blocks", "changed"):
        assert any(message.get(field) for message in messages), field
    entries = [entry for message in messages for entry in message.get("entries", ())]
    assert sum(entry[4] for entry in entries) > sum(entry[5] for entry in entries) > 0
    assert {reason for message in messages for _, reason in message.get("ended", ())} == {"length", "stop", "abort"}
