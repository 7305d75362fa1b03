"""Finds the models on this machine: the embedded one, those in the hub's cache, and the files of other programs."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from roseplay.model.checkpoint_json import read_object
from roseplay.model.errors import UnsupportedModelError, reason_of
from roseplay.model.gguf_names import first_part
from roseplay.model.source import Source, find_source, hub_answers
from roseplay.models.entry import ModelEntry, of_directory, of_gguf
from roseplay.own_models import EMBEDDED, SMOLLM2

MOST_MODELS = 500
MOST_SEEN = 20_000  # directory entries
SEARCH_S = 4.0
DEPTH = 6  # levels of folders below a place
FRESH_S = 5.0
HUB_S = 10.0  # timeout for asking the hub whether it has a model
_BLOB = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_log = logging.getLogger(__name__)
Description = Callable[[], ModelEntry | None]  # describes a model that was found


@dataclass(frozen=True)
class Places:
    """Folders in which models may be found; missing folders are skipped."""

    hub: Path | None = None
    llama_cpp: Sequence[Path] = ()
    lm_studio: Sequence[Path] = ()
    ollama: Sequence[Path] = ()

    @classmethod
    def usual(cls, home: Path | None = None, environ: Mapping[str, str] = os.environ) -> Places:
        """Returns the folders in which programs keep their models, following their environment variables."""
        from huggingface_hub import constants

        home = home or Path.home()
        llama_cpp, ollama = environ.get("LLAMA_CACHE"), environ.get("OLLAMA_MODELS")
        return cls(
            hub=Path(constants.HF_HUB_CACHE),
            llama_cpp=[Path(llama_cpp) if llama_cpp else home / ".cache/llama.cpp"],
            lm_studio=[home / ".lmstudio/models", home / ".cache/lm-studio/models"],
            ollama=[Path(ollama)] if ollama else [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")],
        )


@dataclass
class Search:
    """One search within limits; ``complete`` says afterwards whether none of them was reached."""

    places: Places
    most_models: int = MOST_MODELS
    most_seen: int = MOST_SEEN
    within_s: float = SEARCH_S
    entries: list[ModelEntry] = field(default_factory=list)
    complete: bool = True
    _seen: int = 0
    _until: float = 0.0

    def run(self) -> None:
        """Search all places, leaving out what cannot be read."""
        self._until = time.monotonic() + self.within_s
        llama_cpp = partial(self._gguf_below, self.places.llama_cpp, "llama.cpp")
        lm_studio = partial(self._gguf_below, self.places.lm_studio, "LM Studio")
        for look in (self._own, self._hub, llama_cpp, lm_studio, self._ollama):
            try:
                for describe_model in look():
                    self._add(describe_model)
                    if len(self.entries) >= self.most_models or self._over():
                        self.complete = False
                        return
            except Exception:  # a damaged cache must not hide the models in other places
                _log.debug("the search for models failed", exc_info=True)
                self.complete = False

    def _add(self, describe_model: Description) -> None:
        try:
            entry = describe_model()
        except Exception:  # nor must a damaged model hide others
            _log.debug("a model could not be described", exc_info=True)
            self.complete = False
            return
        if entry is not None:
            self.entries.append(entry)

    def _over(self) -> bool:
        return self._seen >= self.most_seen or time.monotonic() > self._until

    def _own(self) -> Iterator[Description]:
        yield partial(describe, EMBEDDED)
        yield partial(describe, SMOLLM2)

    def _hub(self) -> Iterator[Description]:
        if self.places.hub is None or not self.places.hub.is_dir():
            return
        from huggingface_hub import scan_cache_dir

        for repo in sorted(scan_cache_dir(self.places.hub).repos, key=lambda repo: repo.repo_id):
            revision = max(repo.revisions, key=lambda one: ("main" in one.refs, one.last_modified), default=None)
            if repo.repo_type != "model" or revision is None:
                continue
            folder = revision.snapshot_path
            yield partial(of_directory, folder, name=repo.repo_id, model=repo.repo_id, source="hub")
            for file in self._files(folder):
                model = f"{repo.repo_id}:{file.relative_to(folder).as_posix()}"
                yield from self._gguf(file, "hub", name=model, model=model)

    def _gguf_below(self, places: Iterable[Path], source: str) -> Iterator[Description]:
        for place in places:
            for file in self._files(place):
                yield from self._gguf(file, source)

    def _gguf(self, file: Path, source: str, **about: str) -> Iterator[Description]:
        if first_part(file.name) == file.name:  # a split model is one
            yield partial(of_gguf, file, source=source, **about)

    def _ollama(self) -> Iterator[Description]:
        for place in self.places.ollama:
            manifests = place / "manifests"
            for file in self._files(manifests, suffix=""):
                if (blob := _model_blob(file, place / "blobs")) is not None:
                    yield partial(of_gguf, blob, name=_ollama_name(file.relative_to(manifests).parts), source="Ollama")

    def _files(self, folder: Path, suffix: str = ".gguf", depth: int = DEPTH) -> Iterator[Path]:
        """Yields files below a folder, by name; links to folders are not followed."""
        try:
            with os.scandir(folder) as entries:
                inside = []
                for entry in entries:
                    self._seen += 1
                    if self._over():
                        self.complete = False
                        break
                    inside.append(entry)
        except OSError:
            return
        for entry in sorted(inside, key=lambda entry: entry.name):
            if self._over():
                return
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from self._files(Path(entry.path), suffix, depth - 1)
            elif entry.name.lower().endswith(suffix) and not entry.name.startswith(".") and entry.is_file():
                yield Path(entry.path)


def _model_blob(manifest: Path, blobs: Path) -> Path | None:
    """Returns the weights file that an Ollama manifest names; None if it names none, or the file is missing."""
    try:
        layers = read_object(manifest)["layers"]
        digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER)
        match = _BLOB.fullmatch(digest)
    except (UnsupportedModelError, KeyError, TypeError, StopIteration):
        return None
    blob = blobs / f"sha256-{match[1]}" if match else None
    return blob if blob is not None and blob.is_file() else None


def _ollama_name(parts: Sequence[str]) -> str:
    """Returns a model's name as Ollama shows it, without the default registry and library."""
    *path, tag = parts
    if path[:1] == ["registry.ollama.ai"]:
        path = path[2:] if path[1:2] == ["library"] else path[1:]
    return f"{'/'.join(path)}:{tag}"


# -- one model


def describe(model: str) -> ModelEntry:
    """Returns the entry of a model by its name, path or hub id; for a hub id that is not cached, it says little.

    Raises ``UnsupportedModelError`` if it is none of these.
    """
    source = find_source(model)
    about: dict[str, Any] = {"name": source.name, "model": model}
    if source.file is not None:
        where = "package" if model == SMOLLM2 else "file" if Path(model).suffix else "directory"
        entry = of_gguf(source.file, source=where, **about)
    elif source.local:
        where = "roseplay" if model == EMBEDDED else "directory"
        entry = of_directory(Path(source.place), source=where, **about)
    else:
        return _of_hub_id(source, model)
    return entry or ModelEntry(source="file", refused="it is not a decoder with a causal language model head", **about)


def _of_hub_id(source: Source, model: str) -> ModelEntry:
    from huggingface_hub import try_to_load_from_cache

    config = None if source.gguf is not None else try_to_load_from_cache(source.place, "config.json")
    cached = isinstance(config, str) and of_directory(Path(config).parent, name=source.name, model=model, source="hub")
    return cached or ModelEntry(source.name, model, "download")


def check_download(entry: ModelEntry) -> None:
    """Ask the hub whether a model that is not on this machine can be downloaded.

    Raises ``UnsupportedModelError`` if the hub does not answer, has no such model, or denies access to it.
    """
    from huggingface_hub import HfApi

    if not hub_answers():
        raise UnsupportedModelError(
            f"{entry.name} is not on this machine, and the Hugging Face hub cannot be reached: give a directory or a GGUF file"
        )
    try:
        HfApi().model_info(find_source(entry.model).place, timeout=HUB_S)
    except Exception as error:  # errors of several libraries
        raise UnsupportedModelError(f"{entry.name} cannot be downloaded: {str(error).splitlines()[0]}") from None


class ModelCatalog:
    """The models on this machine. Searches run in a thread, one at a time, so that slow network folders block no
    caller.

    Args:
        places: returns the folders to search.
        fresh_s: age up to which a search is reused.
    """

    def __init__(self, places: Callable[[], Places] = Places.usual, fresh_s: float = FRESH_S) -> None:
        self._places, self._fresh_s = places, fresh_s
        self._lock = threading.Lock()
        self._search: Search | None = None
        self._thread: threading.Thread | None = None
        self._found_at = float("-inf")

    def entries(self, wait_s: float = SEARCH_S + 1) -> tuple[list[ModelEntry], bool]:
        """Returns the models found within ``wait_s`` seconds, and whether the list is complete."""
        with self._lock:
            stale = time.monotonic() - self._found_at > self._fresh_s
            if (self._thread is None or not self._thread.is_alive()) and stale:
                self._search = Search(self._places())
                self._thread = threading.Thread(target=self._run, args=(self._search,), daemon=True)
                self._thread.start()
            search, thread = self._search, self._thread
        assert search is not None and thread is not None
        thread.join(wait_s)
        return _once(list(search.entries)), search.complete and not thread.is_alive()

    def _run(self, search: Search) -> None:
        search.run()
        self._found_at = time.monotonic()

    def find(self, model: str) -> ModelEntry:
        """Returns the entry of a model, even one that the search did not find, or that there is not."""
        listed = next((entry for entry in self.entries()[0] if entry.model == model), None)
        try:
            return listed or describe(model)
        except (OSError, ValueError) as error:
            return ModelEntry(Path(model).name or model, model, "file", refused=reason_of(error))


def _once(entries: Sequence[ModelEntry]) -> list[ModelEntry]:
    """Returns the entries without duplicates."""
    by_model: dict[str, ModelEntry] = {}
    for entry in entries:
        by_model.setdefault(entry.model, entry)
    return list(by_model.values())


def given(names: Sequence[str], catalog: ModelCatalog) -> list[ModelEntry]:
    """Returns the entries of just these models, in this order."""
    return [catalog.find(name) for name in names]
