"""Counts the bytes that come from the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from roseplay.core.progress import Reporter


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


def download_bar(reporter: Reporter) -> type[tqdm]:
    """Returns a class of progress bars that draw nothing, and report the bytes of the hub's downloads.

    The hub's client makes several for one download, of bytes and of files; the largest one of bytes is all of it.
    """
    bars: list[tqdm] = []

    class DownloadBar(tqdm):
        monitor_interval = 0  # no thread that draws it again

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "file": _Nowhere()})
            if self.unit == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            drawn = super().update(n)
            if bars:
                largest = max(bars, key=lambda bar: bar.total or 0)
                reporter.count(int(largest.n), int(largest.total) if largest.total else None)
            return drawn

    return DownloadBar
