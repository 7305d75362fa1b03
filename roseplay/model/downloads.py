"""Reports the progress of downloads from the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from roseplay.core.progress import Reporter


class _Nowhere:
    """A file that discards what is written to it."""

    def write(self, text: str) -> None: ...
    def flush(self) -> None: ...


def download_bar(reporter: Reporter) -> type[tqdm]:
    """Returns a class of progress bars that draw nothing and report the bytes that the hub's client downloads.

    The client creates several bars for one download, some counting bytes and some files; the largest one that counts
    bytes stands for the whole download.
    """
    bars: list[tqdm] = []

    class DownloadBar(tqdm):
        monitor_interval = 0  # start no thread that redraws it

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
