"""Finds the Chromium that the browser tests start: ``ROSEPLAY_CHROMIUM``, else the system's, else Playwright's own.

As a program (``python -m tests.chromium``, which ``make test`` runs each time) it installs one where there is none: the
distribution's package if it may, else Playwright's download. If neither can be had it says so and succeeds all the same:
the browser tests are then skipped, or fail with ``CI=true``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The headless shell is the same browser without windows; a page takes a third less CPU time in it.
PACKAGES = ("chromium-headless-shell", "chromium")
NAMES = (*PACKAGES, "chromium-browser", "google-chrome", "google-chrome-stable")
STARTS_WITHIN_S = 30
INSTALLS_WITHIN_S = 900


def find() -> str | None:
    """Path of a Chromium that starts, or None."""
    named = os.environ.get("ROSEPLAY_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for path in _candidates() if _starts(path)), None)


def _candidates() -> Iterator[str]:
    for name in NAMES:
        path = shutil.which(name)
        if path:
            yield path
    path = _playwright_path()
    if path:
        yield path


def _playwright_path() -> str | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    try:
        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
    except Exception:  # Playwright's driver does not start
        return None
    return path if Path(path).exists() else None


def _starts(path: str) -> bool:
    """False for Ubuntu's stub, which only asks for a snap, and for a browser that lacks system libraries."""
    return _succeeds([path, "--version"], STARTS_WITHIN_S, quiet=True)


def _succeeds(command: list[str], timeout_s: float, *, quiet: bool = False) -> bool:
    output = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.run(command, stdout=output, stderr=output, timeout=timeout_s, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _install_package() -> None:
    """Install the distribution's Chromium, where there is apt-get and we are root."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("no Chromium found: installing it with apt-get", flush=True)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    if _succeeds(["apt-get", "update", "-qq"], INSTALLS_WITHIN_S):
        install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends"]
        any(_succeeds([*install, package], INSTALLS_WITHIN_S) for package in PACKAGES)


def _download() -> None:
    """Fetch Playwright's own Chromium."""
    print("no Chromium found: fetching Playwright's own", flush=True)
    _succeeds([sys.executable, "-m", "playwright", "install", "chromium"], INSTALLS_WITHIN_S)


def main() -> int:
    """Install a Chromium unless there is one; returns 0 either way."""
    for install in (_install_package, _download):
        if find():
            return 0
        install()
    if not find():
        line = "!" * 100
        print(
            f"{line}\nNO CHROMIUM: tests/browser will be SKIPPED. Install chromium, or set ROSEPLAY_CHROMIUM.\n{line}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
