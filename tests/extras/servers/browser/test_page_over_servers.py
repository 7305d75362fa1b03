"""The page of another server, in a real browser: chats, bursts and knobs work, and what it cannot show is absent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from roseplay.engine.client import Engine
from roseplay.extras.servers.address import StepsAddress
from roseplay.extras.servers.engine import HttpEngine
from roseplay.play.playground import Playground
from tests.at_a_port import at_a_port
from tests.extras.servers.servers import Script, attached, words
from tests.extras.servers.vllm.fake_probe import probe
from tests.pages import DESKTOP, PHONE, Served, answer_at_most, ask, state
from tests.play.conftest import serving as serving_page
from tests.serve.conftest import serving

ENDED = re.compile("cut|done")
TGI = "tgi_queue_size 3\ntgi_batch_current_size 8\n"


@pytest.fixture(scope="module")
def ours() -> Iterator[Served]:
    """The page of our own server."""
    with (
        Engine("tiny-chat", num_blocks=449, threads=1, worker="thread") as engine,
        serving(engine) as address,
        HttpEngine(address) as remote,
    ):
        playground = Playground(remote)
        with serving_page(remote, playground, has_api=False) as page:
            yield Served(page, engine, playground)


@pytest.fixture
def page_of(ours: Served) -> Iterator[Served]:
    yield ours
    ours.rest()


@pytest.fixture(scope="module")
def plain() -> Iterator[Served]:
    """The page of a server that reports load metrics and nothing else."""
    script = Script(words("Some ", "words ", "only."), metrics=TGI, card={"owned_by": "tgi"})
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        playground = Playground(remote)
        with serving_page(remote, playground, has_api=False) as page:
            yield Served(page, remote, playground)


def test_chats_and_bursts_stream(ours: Served, page: Page) -> None:
    expect(page.locator(".rp-model-chip")).to_contain_text("tiny-chat·roseplay at 127.0.0.1")
    answer_at_most(page, 24)
    ask(page, "What is a cache?")
    for lane in (1, 2, 3, 4):
        expect(state(page, lane)).to_have_text(ENDED)
    expect(state(page, 1)).to_have_attribute("title", re.compile(r"^[1-9]\d* prompt tokens"))  # as the server counts
    ours.engine.set_knobs(slow_motion=8)  # the load is polled twice a second; a burst may take less
    page.locator("#burst").click()
    page.wait_for_function("() => Rose.store.loads.some((load) => load.running > 0)")
    ours.engine.set_knobs(slow_motion=1)
    page.wait_for_function(
        "() => [...Rose.store.requests.values()].filter((one) => one.finished !== null).length === 24"
    )
    assert page.evaluate("() => Rose.store.steps.end") == 0
    assert page.evaluate("() => Rose.store.tokens.end") > 20 * 64
    expect(page.locator(".rp-kpi.saved")).to_contain_text("prefix hit rate")
    page.wait_for_function("() => /\\d+%/.test(document.querySelector('.rp-kpi.saved b').textContent)")


def test_without_knobs_there_are_no_controls_for_them(plain: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(plain)
    for screen in (PHONE, DESKTOP):
        page.set_viewport_size(screen["viewport"])
        page.wait_for_function("(width) => innerWidth === width", arg=screen["viewport"]["width"])
        for gone in ("#rp-sched", "#rp-opt", "#rp-knobs", "#rp-tokens", "#rp-blockmap", "#rp-kvtime"):
            expect(page.locator(gone)).to_be_hidden()
        for button in page.get_by_role("button", name="Show me").all():
            expect(button).to_be_hidden()
    expect(page.locator("#rp-absent")).to_contain_text("TGI has no /v1/runtime_config")
    ask(page, "Hello")
    expect(page.locator("#rp-lane-1 .rp-text")).to_contain_text("Some words only.")
    expect(page.locator(".rp-kpi.rw b")).to_have_text("8/3")


def test_what_it_does_not_report_is_absent_with_the_reason(page: Page) -> None:
    for gone in ("#rp-tokens", "#rp-blockmap"):
        expect(page.locator(gone)).to_be_hidden()
    for there in ("#rp-itl", "#rp-ttft", "#rp-kvtime", "#rp-sched", "#rp-opt"):
        expect(page.locator(there)).to_be_visible()
    expect(page.locator("#rp-absent")).to_contain_text("roseplay does not report single steps")
    expect(page.locator("#rp-steps h3")).to_have_text("Requests")


def test_a_token_says_that_its_step_is_not_known(page: Page) -> None:
    answer_at_most(page, 24)
    ask(page, "Why?")
    expect(state(page, 1)).to_have_text(ENDED)
    page.evaluate("""() => {
      const { tokens } = Rose.store, slot = (tokens.end - 1) & tokens.mask;
      Rose.emit("select", { rid: tokens.request_id[slot], step: tokens.step_id[slot], itl: tokens.itl_ms[slot] });
    }""")
    expect(page.locator(".rp-pop")).to_contain_text(
        "roseplay does not report single steps, so the reason is not known."
    )


def test_the_lab_compares_the_server_with_itself(page: Page) -> None:
    page.get_by_role("tab", name="Lab").click()
    page.locator(".rp-lab-card[data-name=token-budget]").click()
    page.locator("#lab-num_requests input").fill("3")
    page.locator("#lab-num_requests input").blur()
    page.locator("#lab-repeats input").fill("1")
    page.locator("#lab-repeats input").blur()
    page.locator("#lab-run").click()
    page.wait_for_function("() => Rose.lab.job && Rose.lab.job.state === 'done'")
    expect(page.locator("#rp-lab-result")).to_contain_text("TTFT p50")


def replicas(queries: int) -> str:
    """Metrics of two engines, one of which finds most of its prompts cached."""
    return "".join(
        f'vllm:num_requests_running{{engine="{engine}"}} {running}\nvllm:num_requests_waiting{{engine="{engine}"}} 0\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}"}} {usage}\n'
        f'vllm:prefix_cache_queries_total{{engine="{engine}"}} {queries}\n'
        f'vllm:prefix_cache_hits_total{{engine="{engine}"}} {queries * found}\n'
        for engine, running, usage, found in (("0", 3, 0.25, 0.9), ("1", 5, 0.5, 0.1))
    )


@pytest.fixture(scope="module")
def replicated() -> Iterator[tuple[Served, Script]]:
    script = Script(words("Some words."), metrics=replicas(100), card={"owned_by": "vllm"})
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        playground = Playground(remote)
        with serving_page(remote, playground, has_api=False) as page:
            yield Served(page, remote, playground), script


def test_replicas_stand_side_by_side(replicated: tuple[Served, Script], open_page: Callable[..., Page]) -> None:
    served, script = replicated
    page = open_page(served)
    expect(page.locator("#rp-replicas tbody tr")).to_have_count(2)
    script.metrics = replicas(200)
    rows = page.locator("#rp-replicas tbody tr")
    expect(rows.nth(0)).to_have_text("03025 %90 %")
    expect(rows.nth(1)).to_have_text("15050 %10 %")
    expect(page.locator(".rp-kpi.rw b")).to_have_text("8/0")


@pytest.mark.slow
def test_a_recording_of_it_replays_on_any_page(
    mock: Served, page: Page, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    answer_at_most(page, 24)
    ask(page, "What is a cache?")
    expect(state(page, 4)).to_have_text(ENDED)
    page.wait_for_function("() => Rose.store.open.size === 0")
    download = page.evaluate("async () => (await fetch(`/ui/export/recording.jsonl?tab=${Rose.tab}`)).text()")
    file = tmp_path / "run.jsonl"
    file.write_text(download)
    replay = open_page(mock)
    expect(replay.locator("#rp-tokens")).to_be_visible()
    replay.get_by_role("tab", name="Traces").click()
    replay.locator("#rp-traces-all input[type=file]").set_input_files(file)
    expect(replay.locator("#rp-replay")).to_be_visible()
    replay.evaluate("Rose.replay.seek(1e9)")
    expect(replay.locator("#rp-tokens")).to_be_hidden()
    expect(replay.locator(".rp-model-chip")).to_contain_text("roseplay at 127.0.0.1")
    assert replay.evaluate("() => [Rose.store.requests.size >= 4, Rose.store.steps.end]") == [True, 0]


@pytest.fixture(scope="module")
def probed() -> Iterator[Served]:
    """The page of a vLLM with a probe inside."""
    with (
        probe() as fake,
        attached(Script(words("Yes"), card={"owned_by": "vllm"}), steps=StepsAddress(fake.address)) as remote,
    ):
        playground = Playground(remote)
        with serving_page(remote, playground, has_api=False) as page:
            yield Served(page, remote, playground)


def test_a_vllm_with_a_probe_has_steps_blocks_and_its_own_limits(
    probed: Served, open_page: Callable[..., Page]
) -> None:
    page = open_page(probed)
    for shown in ("#rp-sched", "#rp-tokens", "#rp-blockmap", "#rp-kvtime"):
        expect(page.locator(shown)).to_be_visible()
    expect(page.locator("#prefill-interval .info-text")).to_have_text("fixed")
    expect(page.locator("#prefill-interval input[type=range]")).to_be_disabled()
    expect(page.locator("#budget .info-text")).to_have_text(re.compile(r"^up to 2\s?048$"))
    expect(page.locator("#sharing input")).to_be_disabled()
    prefix_cache = page.locator("#prefix-cache input")
    expect(prefix_cache).to_be_checked()
    prefix_cache.uncheck(force=True)
    page.wait_for_function("() => Rose.store.knobs.prefix_cache === false")
    expect(page.locator("#max-batch .info-text")).to_have_text("up to 64")
    slider = page.locator("#step-tokens input[type=range]")
    for key, tokens in (("Home", 16), ("End", 2048)):
        slider.press(key)
        page.wait_for_function("(tokens) => Rose.store.knobs.step_max_tokens === tokens", arg=tokens)
    expect(page.locator("#step-tokens-value input")).to_have_value("2048")
