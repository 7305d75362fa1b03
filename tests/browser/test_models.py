"""The list of models behind the header's chip: opening it, loading another model, and one that cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from roseplay.core.info import FreeMemory
from roseplay.models.catalog import ModelCatalog, Places
from roseplay.models.entry import ModelEntry
from roseplay.play.model_picker import ModelPicker
from tests.hardware import needs_simulation
from tests.pages import answer_at_most, ask, state, text
from tests.play.conftest import serving
from tests.play.model_host import BROKEN, FIRST, ModelHost, model_host
from tests.waiting import wait_until

ENTRIES = [
    ModelEntry(FIRST, FIRST, "roseplay", 4_727_864, "bfloat16", "llama", 2_361_408, 2048, 4_722_816),
    ModelEntry("other", "other", "LM Studio", 98_362_432, "Q4_1", "llama", 134_515_008, 8192, 269_030_016),
    ModelEntry("large", "large", "hub", 10**12, "bfloat16", "llama", 5 * 10**11, 8192, 10**12),
    ModelEntry("awq", "awq", "hub", 10**9, "awq", "llama", refused="its weights are quantized by awq"),
]
CATALOG: Any = SimpleNamespace(
    entries=lambda: (ENTRIES, True),
    find=lambda name: next((one for one in ENTRIES if one.model == name), None) or ModelCatalog(Places).find(name),
)


@pytest.fixture(scope="module")
def _host() -> Iterator[ModelHost]:
    with model_host() as made:
        picker = ModelPicker(made.host, trusted=True, catalog=CATALOG)
        with serving(None, made.host, picker=picker) as made.address:  # type: ignore[attr-defined]
            yield made


@pytest.fixture
def models(_host: ModelHost) -> Iterator[ModelHost]:
    """A host that runs the first model, on a machine with 24 GiB."""
    _host.engine.memory = FreeMemory(host=24 * 2**30)
    yield _host
    _host.held.clear()
    _host.broken.clear()
    _host.host.wait(60)  # the last test may have looked no further than to what is loading
    _host.host.playground.stop()
    _host.switch(FIRST)


@pytest.fixture
def page_of(models: ModelHost) -> ModelHost:
    return models


@pytest.fixture
def page(page: Page, expect_error: Callable[[str], None]) -> Page:
    """Its browser logs refusals on the console, also those of calls while engines change."""
    expect_error("the server responded with a status of")
    return page


def chip(page: Page) -> Any:
    return page.locator("button.rp-model-chip")


def radio(page: Page, name: str) -> Any:
    return page.locator(f".rp-model input[value='{name}']")


def test_the_list_opens_by_key_and_says_what_there_is(page: Page) -> None:
    chip(page).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Models")).to_be_visible()
    expect(chip(page)).to_have_attribute("aria-expanded", "true")
    expect(radio(page, FIRST)).to_be_focused()
    expect(page.locator(".rp-models .rp-model")).to_have_count(4)
    expect(page.locator(".rp-model:has(input:checked)")).to_contain_text("runs now")
    large = page.locator(".rp-model:has(input[value='large'])")
    expect(large).to_contain_text("Its weights need at least 1\u202f000 GB")
    for refused in ("large", "awq"):
        expect(radio(page, refused)).to_be_disabled()
    page.keyboard.press("ArrowDown")
    expect(radio(page, "other")).to_be_checked()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Models")).to_be_hidden()
    expect(chip(page)).to_be_focused()


@needs_simulation
def test_a_simulated_gpu_lists_models_of_which_only_the_config_is_needed(models: ModelHost, page: Page) -> None:
    chip(page).click()
    gpus = page.locator(".rp-engine [name=tensor_parallel_size]")
    expect(gpus).to_be_hidden()
    page.locator(".rp-picker [name=run_as]").select_option("h100")
    expect(page.locator(".rp-models .rp-model", has_text="qwen3-32b")).to_contain_text("config only")
    expect(page.locator(".rp-engine [name=dtype]")).to_be_hidden()
    gpus.fill("3")
    radio(page, "qwen3-32b").check()
    page.get_by_role("button", name="Load").click()
    expect(page.locator(".rp-told")).to_contain_text("64 attention heads, which cannot be divided among 3 GPUs")
    gpus.fill("2")
    page.get_by_role("button", name="Load").click()
    expect(chip(page)).to_contain_text("qwen3-32b")
    assert models.host.wait(30)
    assert (models.host.config.run_as, models.host.config.tensor_parallel_size) == ("h100", 2)


@needs_simulation
def test_the_operators_list_offers_no_simulated_gpus(page: Page) -> None:
    of_the_operator = lambda route: route.fulfill(json={**route.fetch().json(), "simulated": []})  # noqa: E731
    page.route("**/ui/models*", of_the_operator)
    chip(page).click()
    radio(page, "other").check()
    expect(page.locator(".rp-picker [name=run_as]")).to_have_count(0)
    page.get_by_role("button", name="Load").click()
    expect(chip(page)).to_contain_text("other")


def test_loading_one_shows_its_start_and_goes_live(models: ModelHost, page: Page) -> None:
    answer_at_most(page, 1800)  # still running when another is loaded, even on a busy machine
    ask(page, "hello")
    expect(text(page, 1)).to_contain_text("packs prompts")
    models.held.set()
    chip(page).click()
    radio(page, "other").check()
    page.locator(".rp-pool input").fill("77")
    page.get_by_label("Longest request").fill("512")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator(".rp-start p")).to_contain_text("other is loading. Weights, 5.0 of 10 MB.")
    expect(chip(page)).to_contain_text("other")
    expect(text(page, 1)).to_contain_text("while this answer was in progress")
    chip(page).click()  # meanwhile nothing else can be loaded
    expect(page.get_by_role("button", name="Load", exact=True)).to_be_disabled()
    page.keyboard.press("Escape")
    models.held.clear()
    page.wait_for_selector(".rp-live[data-state=live]")
    expect(page.locator(".rp-start")).to_have_count(0)
    expect(chip(page)).to_contain_text("other·cpu")
    assert (models.host.config.num_blocks, models.host.config.max_model_len) == (77, 512)
    expect(state(page, 1)).to_have_text("error")  # the text stays, with the reason
    expect(text(page, 1)).to_contain_text("the model was changed to other")
    expect(text(page, 1)).to_contain_text("packs prompts")
    ask(page, "again")
    expect(state(page, 1)).to_contain_text("decode")
    assert page.evaluate("() => [...Rose.store.requests.values()].every((one) => one.first === null || one.first > 0)")


def test_one_that_fails_is_explained_until_that_is_dismissed(models: ModelHost, page: Page) -> None:
    models.broken.add("other")
    chip(page).click()
    radio(page, "other").check()
    page.get_by_role("button", name="Load", exact=True).click()
    notice = page.locator("#rp-notice")
    expect(notice).to_contain_text(f"other could not be loaded: {BROKEN}. {FIRST} is running again.")
    ask(page, "hello")
    expect(text(page, 1)).to_contain_text("packs prompts")
    expect(notice).to_be_visible()
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_be_hidden()
    polls = page.evaluate("() => Rose.poll.count")
    page.wait_for_function("(polls) => Rose.poll.count > polls + 2", arg=polls)
    expect(notice).to_be_hidden()


def test_a_load_is_cancelled_on_the_page(models: ModelHost, phone: Page) -> None:
    begun = len(models.starts)
    models.held.set()
    chip(phone).tap()
    box = phone.locator(".rp-pop").bounding_box()
    assert box is not None and box["x"] == 0 and box["width"] == 390  # shown as a sheet
    radio(phone, "other").check()
    phone.get_by_role("button", name="Load", exact=True).tap()
    phone.get_by_role("button", name="Cancel").tap()
    wait_until(lambda: len(models.starts) == begun + 2)
    models.held.clear()
    phone.wait_for_selector(".rp-live[data-state=live]")
    expect(chip(phone)).to_contain_text(FIRST)
    assert phone.locator("#rp-notice").count() == 0


def test_a_refusal_is_said_in_the_list(models: ModelHost, page: Page) -> None:
    begun = len(models.starts)
    chip(page).click()
    page.get_by_label("Path or hub id").fill("/nowhere/at/all")
    page.keyboard.press("Enter")
    expect(page.locator(".rp-told")).to_contain_text("All cannot be served: there is no such directory or file")
    assert len(models.starts) == begun
