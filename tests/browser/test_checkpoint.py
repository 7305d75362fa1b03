"""What the page says about the checkpoint that it serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from roseplay.core.info import Choice
from tests.browser.conftest import Served, serving
from tests.play.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def published() -> Iterator[Served]:
    """An engine whose checkpoint was dequantized, and whose author recommends a temperature."""
    engine = FakeEngine(run=True, step_s=0.02)
    made = (Choice("checkpoint", "mxfp4, dequantized to bfloat16 while it was read"),)
    engine.info = dataclasses.replace(engine.info, choices=made, sampling_defaults={"temperature": 1.2})
    with serving(engine) as served:
        yield served


def test_the_chip_says_what_was_made_of_the_checkpoint(open_page: Callable[..., Page], published: Served) -> None:
    chip = open_page(published).locator(".rp-model-chip")
    expect(chip).to_have_attribute("title", "fake-chat on cpu in float32: 0 parameters, 448 KV blocks of 16 tokens. "
        "mxfp4, dequantized to bfloat16 while it was read")  # fmt: skip


def test_controls_say_where_their_values_come_from(open_page: Callable[..., Page], published: Served) -> None:
    page = open_page(published)
    page.locator("#sampling").click()
    temperature, top_k = page.locator("#sampling-temperature"), page.locator("#sampling-top-k")
    expect(temperature.locator("input[type=number]")).to_have_value("1.2")
    expect(temperature).to_have_attribute(
        "title", "temperature: recommended by the model's author, in its generation_config.json"
    )
    expect(top_k).to_have_attribute("title", "top_k: this program's default")
    top_k.locator("input[type=number]").fill("5")
    temperature.locator("input[type=number]").fill("0.3")
    expect(temperature).to_have_attribute("title", "temperature: changed for all lanes")
    page.locator("#sampling-reset").click()
    expect(temperature).to_have_attribute("data-source", "model")
    expect(temperature.locator("input[type=number]")).to_have_value("1.2")
