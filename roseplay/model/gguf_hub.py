"""GGUF files of the Hugging Face hub: found in its cache, or downloaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download

from roseplay.core.progress import Reporter
from roseplay.model.downloads import download_bar
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.gguf_names import one_gguf, part_names
from roseplay.model.source import Source, cached_first


def on_this_machine(source: Source, reporter: Reporter | None = None) -> Source:
    """Returns a hub id's GGUF model as a local file, downloading it if it is not cached; returns other sources
    unchanged.

    Raises ``UnsupportedModelError`` if no file matches, or more than one does.
    """
    if source.local or source.gguf is None:
        return source

    def load(offline: bool) -> Source:
        files = _cached_files(source.place) if offline else HfApi().list_repo_files(source.place)
        try:
            chosen = one_gguf(files, source.gguf or "", source.name, lambda file: f"{source.place}/{file}")
        except UnsupportedModelError as error:
            if offline:  # the hub may have more files than the cache
                raise FileNotFoundError from error
            raise
        options: dict[str, Any] = {"local_files_only": offline}
        if not offline and reporter is not None and reporter.heard:
            reporter.begin("download", unit="bytes")
            options["tqdm_class"] = download_bar(reporter)
        paths = [Path(hf_hub_download(source.place, part, **options)) for part in part_names(chosen)]
        return replace(source, place=str(paths[0].parent), local=True, gguf=paths[0].name)

    return cached_first(source, load)


def _cached_files(repository: str) -> list[str]:
    directory = Path(snapshot_download(repository, local_files_only=True))
    return [file.relative_to(directory).as_posix() for file in directory.rglob("*")]
