"""The parts of serving replicas that do not need Ray."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import EngineConfig, SamplingParams
from roseplay.core.cache_events import Cleared, Removed, Stored, block_hashes
from roseplay.core.info import EngineInfo
from roseplay.core.request import FinishReason
from roseplay.core.step import TokenLogprobs
from roseplay.engine.client import Engine
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import RequestEvent, StepEvent
from roseplay.extras.ray.autoscaling import desired_replicas
from roseplay.extras.ray.deployment_settings import RaySettings, num_cpus
from roseplay.extras.ray.messages import Part
from roseplay.extras.ray.remote_stream import RemoteStream
from roseplay.extras.ray.replica_figures import FigureCounter, ReplicaFigures
from roseplay.extras.ray.reports import MOST_ENDED, Report, Reports, merged
from roseplay.extras.ray.resident_blocks import ResidentBlocks, unpack
from roseplay.extras.ray.routing import Candidate, leading, ranked
from roseplay.extras.ray.shared_stream import SharedStream
from roseplay.serve import main
from tests.each_line import at_each_line, beside_each_line

RNG = random.Random(0)


# -- the router's choice


@pytest.mark.parametrize(
    ("loads", "resident", "best"),
    [
        ([0, 0], [0, 3], 1),
        ([8, 0], [3, 0], 0),  # within the slack, the prefix decides
        ([9, 0], [3, 0], 1),  # beyond it, the load decides
        ([5, 2, 9], [4, 4, 4], 1),  # equal prefixes: the least loaded
        ([20, 20], [1, 0], 0),  # both are equally busy
        ([30, 12, 3], [9, 5, 0], 2),
        ([30, 11, 3], [9, 5, 0], 1),  # the next longest prefix that is not overloaded
    ],
)
def test_the_best_replica(loads: list[int], resident: list[int], best: int) -> None:
    candidates = [Candidate(*of_one) for of_one in zip(loads, resident, strict=True)]
    order = ranked(candidates, 8, RNG)
    assert order[0] == best
    assert sorted(order) == list(range(len(loads)))


def test_equal_replicas_are_drawn_and_having_no_replica_is_no_fault() -> None:
    assert {ranked([Candidate(1, 0)] * 3, 8, RNG)[0] for _ in range(50)} == {0, 1, 2}
    emptier_cache_first = ranked([Candidate(1, 0, 9), Candidate(1, 0, 3), Candidate(2, 0, 0)], 8, RNG)
    assert emptier_cache_first == [1, 0, 2]
    assert ranked([], 8, RNG) == []


def test_only_leading_blocks_count() -> None:
    assert leading([1, 2, 3], {1, 3}) == 1
    assert leading([1, 2, 3], {1, 3}, {2}) == 3
    assert leading([1, 2, 3], {2, 3}) == 0
    assert leading([], {1}) == 0


# -- what is resident


def test_hashes_are_those_of_the_engines_events_and_of_another_process() -> None:
    prompt = [RNG.randrange(2000) for _ in range(3 * 16 + 5)]
    with Engine("tiny-chat", threads=1, num_blocks=40, kv_events=True) as engine:
        engine.submit(prompt, SamplingParams(max_new_tokens=1)).result(30)
        resident = ResidentBlocks()
        for event in engine.telemetry.since(0)[1]:
            resident.take(event)
    hashes = block_hashes(prompt, 16)
    assert len(hashes) == 3 and set(hashes) <= unpack(resident.newest(100))
    script = f"from roseplay.core.cache_events import block_hashes\nprint(block_hashes({prompt}, 16))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == str(hashes)
    assert block_hashes(prompt[:48], 16) == hashes and block_hashes(prompt[:47], 16) == hashes[:2]


def test_blocks_that_were_used_last_are_reported() -> None:
    resident = ResidentBlocks()
    resident.take(step(Cleared(), *(Stored(number, None) for number in range(5))))
    resident.use([0, 1, 99, 3])  # 3 cannot be found behind a block that is missing
    assert unpack(resident.newest(2)) == {0, 1}
    resident.take(step(Removed(1), Removed(77)))
    assert unpack(resident.newest(2)) == {0, 4} and len(resident) == 4
    resident.take(step(Cleared(), Stored(-9, None)))
    assert unpack(resident.newest(2000)) == {-9}


def step(*changes: Any) -> StepEvent:
    record: Any = SimpleNamespace(cache_events=changes)
    return StepEvent(record, [])


# -- parts


@pytest.mark.parametrize("stop", [(), (" the",)])
def test_a_stream_in_parts_is_the_same_stream(engine: Engine, stop: tuple[str, ...]) -> None:
    params = SamplingParams(max_new_tokens=50, stop=stop, logprobs=1, prompt_logprobs=0)
    [(stream, items)] = asyncio.run(shared(engine, {0: params}))
    remote = received(items, stream, params)
    assert 1 < len(items) < len(stream.token_ids)
    for name in ("text", "text_ends", "token_ids", "logprobs", "prompt_logprobs", "finish_reason"):
        assert getattr(remote, name) == getattr(stream, name), name
    assert remote.metrics.completion_tokens == len(remote.metrics.itl_ns) + 1 == len(remote.token_times_ns)
    assert remote.metrics.cached_tokens == stream.metrics.cached_tokens
    assert remote.token_times_ns == sorted(remote.token_times_ns)
    assert remote.metrics.ttft_s <= remote.metrics.e2e_s


@pytest.mark.usefixtures("in_slow_motion")
def test_one_stream_carries_the_parts_of_all_and_another_takes_over(engine: Engine) -> None:
    lengths = {0: 40, 1: 150, 2: 150}
    params = {number: SamplingParams(max_new_tokens=most, ignore_eos=True) for number, most in lengths.items()}
    sent = asyncio.run(shared(engine, params))
    carried = [{number for parts in items for number, _ in parts} for _, items in sent]
    assert carried[0] == {0, 1, 2} and carried[1] == {1}  # the newest takes over
    assert len(sent[1][1]) == 1 and len(sent[2][1]) > 5
    for number in lengths:
        assert received(sent[number][1], sent[number][0], params[number], number).text == sent[number][0].text
    # An ingress that aborted the first request may not have read its parts, so the next carrier starts over.
    second = [part for parts in sent[2][1][:-1] for number, part in parts if number == 1]
    assert second[0].begin == 0 and len(second[0].token_ids) > 20 and second[-1].begin > 0


def test_parts_out_of_order_change_nothing(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=200, ignore_eos=True)
    [(stream, items)] = asyncio.run(shared(engine, {0: params}))
    for wrong in items[1:], [*items[:3], *items[1:2], *items[4:]], [items[-1], *items]:
        assert received(wrong, stream, params).text_ends == stream.text_ends


async def shared(engine: Engine, requests: dict[int, SamplingParams]) -> list[tuple[Stream, list[Any]]]:
    """The parts that are sent to an ingress for each request."""
    stream = SharedStream(engine.clock)

    async def one(number: int, params: SamplingParams) -> tuple[Stream, list[Any]]:
        ended = asyncio.Event()
        submitted = engine.submit(f"Story {number}", params, on_update=stream.listener(ended))
        return submitted, [item async for item in stream.parts(number, submitted, ended)]

    found = await asyncio.gather(*(one(*request) for request in requests.items()))
    assert len(stream) == 0
    return found


def received(items: list[Any], stream: Stream, params: SamplingParams, number: int = 0) -> RemoteStream:
    remote = RemoteStream(0, stream.prompt_token_ids, params, lambda _: False, SYSTEM_CLOCK.now_ns() - 10**9)
    for item in items:
        for request_id, part in item:
            if request_id == number:
                remote.take(part, SYSTEM_CLOCK.now_ns())
    return remote


def test_an_end_with_an_error_is_told() -> None:
    remote = RemoteStream(0, [1], SamplingParams(), lambda _: False, 0)
    remote.take(Part(0, [], [], "", [], [], [], None, 0, 0, 0, 0, "error", "out of memory"), 5)
    assert (remote.finish_reason, remote.error) == (FinishReason.ERROR, "out of memory")


def test_a_part_never_has_half_of_a_token() -> None:
    stream = Stream(1, [0], SamplingParams(logprobs=0), lambda _: False, 0)
    sizes = asyncio.run(sizes_of_parts(stream))
    assert set(sizes) == {(1, 1, 1, 1)}


async def sizes_of_parts(stream: Stream) -> list[tuple[int, ...]]:
    """The parts sent while another thread pushes a token: counts of ids, ages, text ends and log-probabilities."""
    loop = asyncio.get_running_loop()
    found = []

    async def look() -> None:
        shared, ended = SharedStream(SYSTEM_CLOCK), asyncio.Event()
        sent = asyncio.create_task(anext(shared.parts(1, stream, ended)))
        shared.listener(ended)(stream)
        for _ in range(8):  # more iterations of the event loop than waking up and sending take
            await asyncio.sleep(0)
        if sent.done():
            [(_, part)] = sent.result()
            found.append(tuple(map(len, (part.token_ids, part.ages_ns, part.text_ends, part.logprobs))))
        sent.cancel()

    def push() -> None:
        stream.push(7, 5, TokenLogprobs(-1.0, []))
        stream.notify()

    def wait_for_look() -> None:
        asyncio.run_coroutine_threadsafe(look(), loop).result(30)

    await asyncio.to_thread(at_each_line, push, wait_for_look)
    return found


def test_an_end_comes_with_the_last_token() -> None:
    for line in range(1000):
        stream = Stream(1, [0], SamplingParams(), lambda _: False, 0)
        stream.push(7, 5)
        part, lines = first_part(stream, line)
        assert part.token_ids == [7, 9] or part.finish_reason is None
        if lines <= line:
            break
    assert line > 10


def first_part(stream: Stream, ends_at: int) -> tuple[Part, int]:
    """The first part of a stream that another thread ends at a line of the code that makes it; and the lines of it."""
    lines, parts = 0, []

    async def read() -> None:
        shared, ended = SharedStream(SYSTEM_CLOCK), asyncio.Event()
        shared.listener(ended)(stream)
        [(_, part)] = await anext(shared.parts(1, stream, ended))
        parts.append(part)

    def look() -> None:
        nonlocal lines
        if lines == ends_at:
            stream.push(9, 6)
            stream.finish(FinishReason.LENGTH, 7)
        lines += 1

    at_each_line(lambda: asyncio.run(read()), look)
    return parts[0], lines


def test_a_reader_never_sees_half_of_a_part() -> None:
    remote = RemoteStream(0, [1], SamplingParams(logprobs=0), lambda _: False, 0)
    part = Part(0, [7], [3], "h", [1], [TokenLogprobs(-1.0, [])], [], None, 0, 0, 0, 0, None, None)
    seen = []

    def look() -> None:
        if not seen and remote.wait_for_first_token(0):
            chunk = next(iter(remote))
            seen.append((chunk.text, chunk.token_ids, len(chunk.times_ns), remote.text_ends[0], len(remote.logprobs)))

    at_each_line(lambda: remote.take(part, 5), look)
    assert seen == [("h", [7], 1, 1, 1)]


# -- metrics, autoscaling, settings, flags


def test_expositions_are_merged_by_family() -> None:
    one, other = (f'# HELP a A.\n# TYPE a gauge\na{{e="{n}"}} 1\n# HELP b B.\nb{{e="{n}"}} 2\n' for n in "01")
    text = merged([one.encode(), other.encode()]).decode()
    assert text == '# HELP a A.\n# TYPE a gauge\na{e="0"} 1\na{e="1"} 1\n# HELP b B.\nb{e="0"} 2\nb{e="1"} 2\n'
    assert merged([]) == b""


def test_a_replica_that_has_ended_stays_in_the_sums() -> None:
    def report(replica: str, count: float) -> Report:
        registry = CollectorRegistry()
        Counter("v:tokens", "T.", ["engine"], registry=registry).labels("0").inc(count)
        Histogram("v:s", "S.", ["engine"], buckets=[1.0], registry=registry).labels("0").observe(count)
        Gauge("v:running", "R.", ["engine"], registry=registry).labels("0").set(9)
        return Report(replica, generate_latest(registry))

    def told(*answered: Report) -> list[str]:
        reports.take(answered)
        return reports.exposition().decode().splitlines()

    reports = Reports()
    assert 'v:running{engine="0"} 9.0' in told(report("a", 3))
    lines = told(report("b", 1))
    assert 'v:tokens_total{engine="0"} 1.0' in lines and 'v:tokens_total{ended="true",engine="0"} 3.0' in lines
    assert (
        'v:s_bucket{ended="true",engine="0",le="1.0"} 0.0' in lines and 'v:s_sum{ended="true",engine="0"} 3.0' in lines
    )
    assert [line for line in lines if line.startswith("v:running")] == ['v:running{engine="0"} 9.0']
    assert lines.count("# TYPE v:tokens_total counter") == 1
    assert 'ended="true"' not in "".join(told(report("a", 4), report("b", 1)))  # it answers again
    for number in range(40):
        lines = told(report(str(number), 2))
    assert 'v:tokens_total{ended="true",engine="0"} 83.0' in lines  # 4 + 1 + 39 times 2
    assert len(reports._last) < 20


def test_reports_are_taken_and_told_by_several_threads() -> None:
    reports, begun, taken = Reports(), 0, 0

    def take() -> None:
        """A new replica that has counted one token takes the last one's place."""
        nonlocal begun, taken
        begun += 1
        reports.take([Report(str(begun), b"# HELP v_total V.\n# TYPE v_total counter\nv_total 1\n")])
        taken += 1

    def tell() -> None:
        least = taken
        lines = reports.exposition().decode().splitlines()
        total = sum(float(line.split()[-1]) for line in lines if line.startswith("v_total"))
        assert least <= total <= begun

    for _ in range(MOST_ENDED + 3):  # the last of them add up
        beside_each_line(take, tell)
    beside_each_line(tell, take)
    beside_each_line(take, take)
    tell()


@pytest.mark.parametrize("unfinished", [0, 2, 5])
def test_the_figures_of_a_replica(unfinished: int) -> None:
    counter = FigureCounter(EngineInfo("m", "M", "cpu", "float32", "cpu", 1, 1, 100, 16, 41, 512, 1, 1), "7")
    assert counter.look(0) == ReplicaFigures("7", 0, 0, 0.0, 40, 0, 0, 0, None, 0)
    tokens: list[Any] = [None] * 4
    blocks = {"blocks_active": 10, "blocks_shared": 6, "blocks_cached": 3}
    counter.take(StepEvent(StepRecord(0, start_ns=0, end_ns=1, running=3, **blocks), tokens))
    for saved in (8, 0):
        stream = Stream(0, [1] * 10, SamplingParams(), lambda _: False, 0)
        stream.metrics.cached_tokens = saved
        counter.take(RequestEvent("first_token", 0, 1, stream))
        counter.take(RequestEvent("scheduled", 0, 1, stream))
    running = min(unfinished, 3)
    held, cached = (16, 3) if unfinished else (0, 19)  # of requests that have ended, blocks can be found all the same
    figures = counter.look(unfinished)
    assert figures == ReplicaFigures("7", running, unfinished - running, held / 40, 40, cached, 20, 8, 0.4, 4)


def test_replicas_wanted() -> None:
    assert desired_replicas(0, 32, [0.0]) == 1
    assert desired_replicas(64, 32, [0.1, 0.1]) == 2
    assert desired_replicas(65, 32, [0.1, 0.1]) == 3
    assert desired_replicas(10, 32, [1.0, 0.9]) == 3  # limited by blocks


def test_threads_are_shared_out() -> None:
    assert RaySettings("m", replicas=1).on_this_machine().config.threads == num_cpus()
    assert RaySettings("m", replicas=num_cpus()).on_this_machine().config.threads == 1
    with pytest.raises(ValueError, match="use at most"):
        RaySettings("m", EngineConfig(threads=1), replicas=num_cpus() + 1).on_this_machine()
    with pytest.raises(ValueError, match="2 replicas of 1 GPU need 2 GPUs, and this machine has 1: use at most 1"):
        RaySettings("m", EngineConfig(threads=1), replicas=2).on_this_machine(gpus=1)
    split = RaySettings("m", EngineConfig(tensor_parallel_size=num_cpus()))
    assert split.on_this_machine().config.threads == 1
    with pytest.raises(ValueError, match="larger"):
        RaySettings("m", replicas=3, most_replicas=2)


def test_ray_that_is_missing_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("environment", "extra"):
        monkeypatch.delitem(sys.modules, f"roseplay.extras.ray.{name}", raising=False)
    with pytest.raises(SystemExit):
        main.parse(["--ray"])
    assert "ray is not installed: pip install 'roseplay[ray]'" in capsys.readouterr().err.splitlines()[-1]
