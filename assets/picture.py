"""Record page.webp, the looping picture in the README: a burst, a lower prefill budget, the same burst again.

Drives the page in Chromium, as a visitor would who presses *Show me*, and keeps what is seen around the two bursts. Run it from
the repository on a quiet machine, with the packages that the tests in a browser need: ``python assets/picture.py``.
"""

from __future__ import annotations

import argparse
import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZE = (1440, 900)
SCALE = 2 / 3
MOST_BYTES = 3_000_000
QUALITIES = (72, 60, 50, 40)
SCENE_S = {0: 2.6, 1: 2.6, 2: 3.0, 3: 2.6, 4: 4.0}  # how much of each is kept
GUESS = "2"  # the answer to the question of the first
EVERY_S = 0.12


@contextmanager
def served() -> Iterator[str]:
    """The page of SmolLM2, once it is live; gives its address."""
    command = [sys.executable, "-m", "roseplay", "play", "--model", "smollm2", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = None
        while address is None:
            line = server.stdout.readline() if server.stdout else ""
            if not line:
                raise RuntimeError("the page did not start")
            address = re.search(r"live at (http://\S+)", line)
        yield address[1]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)


def scene(page: Page) -> int:
    """Returns the number of the caption that stands, -1 of none."""
    dots = "[...document.querySelectorAll('.rp-strip[data-about=demo] .rp-story-course i')]"
    return int(page.evaluate(f"() => {dots}.findIndex((dot) => dot.className === 'rp-now')"))


def frames(page: Page) -> Iterator[tuple[bytes, int]]:
    """Yields screenshots, as files, with how many ms each is to stand, from the demo's first caption to its last."""
    page.keyboard.press("d")
    begun: dict[int, float] = {}
    left: set[int] = set()
    while (now := scene(page)) >= 0 or not begun:
        if now < 0:
            page.wait_for_timeout(50)
            continue
        started = time.monotonic()
        begun.setdefault(now, started)
        if started - begun[now] > SCENE_S[now]:
            if now not in left:  # once: the page shows the next scene a moment after it has begun
                left.add(now)
                page.keyboard.press(GUESS if now == 0 else "n")
            page.wait_for_timeout(50)
            continue
        shot = page.screenshot(type="jpeg", quality=95)  # as cheap as possible: the engine needs the processor
        yield shot, round(1000 * max(EVERY_S, time.monotonic() - started))
        page.wait_for_timeout(max(0.0, 1000 * (EVERY_S - (time.monotonic() - started))))


def reduced(shot: bytes) -> Image.Image:
    size = (round(SIZE[0] * SCALE), round(SIZE[1] * SCALE))
    return Image.open(io.BytesIO(shot)).resize(size, Image.Resampling.LANCZOS)


def write(shots: list[tuple[bytes, int]], file: Path) -> int:
    """Write the picture in the best quality that is small enough; returns its bytes."""
    images, times = [reduced(shot) for shot, _ in shots], [ms for _, ms in shots]
    for quality in QUALITIES:
        images[0].save(
            file,
            save_all=True,
            append_images=images[1:],
            duration=times,
            loop=0,
            quality=quality,
            method=4,
            minimize_size=True,
        )
        if file.stat().st_size <= MOST_BYTES:
            return file.stat().st_size
    raise RuntimeError(f"{file} has {file.stat().st_size:,} bytes, more than {MOST_BYTES:,}, in the least quality")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("page.webp"))
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser")
    options = parser.parse_args()
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        page.goto(address)
        page.wait_for_selector(".rp-demos li", state="visible")
        page.wait_for_timeout(1500)
        shots = list(frames(page))
        browser.close()
    size = write(shots, options.file)
    print(f"{options.file}: {size:,} bytes, {len(shots)} frames, {sum(ms for _, ms in shots) / 1000:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
