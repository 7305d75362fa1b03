"""Find a Chromium for the browser tests: ``ROSEPLAY_CHROMIUM``, else the system's, else Playwright's own.

Run as a program it fetches Playwright's own where there is none, and says so loudly if that fails too: the tests
in a browser are skipped then, and with ``CI=true`` the test run fails because of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of a Chromium that may be started, or None."""
    named = os.environ.get("ROSEPLAY_CHROMIUM")
    if named:
        return shutil.which(named)
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found
    return _playwrights_own()


def _playwrights_own() -> str | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    try:
        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
    except Exception:  # a driver that does not start is as good as none
        return None
    return path if Path(path).exists() else None


def main() -> int:
    if find():
        return 0
    print("no Chromium found: fetching Playwright's own", flush=True)
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    if not find():
        line = "!" * 100
        print(
            f"{line}\nNO CHROMIUM: tests/browser will be SKIPPED. Install chromium, or set ROSEPLAY_CHROMIUM.\n{line}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
