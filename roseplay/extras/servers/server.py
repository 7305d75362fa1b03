"""A server's properties and what it can report, found out while attaching."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import httpx
from pydantic import BaseModel, Field

from roseplay.config import Knobs
from roseplay.core.info import EngineInfo
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.errors import EngineStartError
from roseplay.engine.telemetry import Load, LoadEvent
from roseplay.extras.servers.control import Control, Reply
from roseplay.extras.servers.dialects import DIALECTS, UNKNOWN, Dialect
from roseplay.extras.servers.load import LoadNames, load_names, read_blocks, read_load
from roseplay.extras.servers.sentences import Document, failure, refusal
from roseplay.extras.servers.server_settings import SERVER_INFO_PATH, settings_in
from roseplay.extras.servers.shapes import Maybe, Name, Text
from roseplay.settings import settings_of

KNOBS_PATH = "/v1/runtime_config"
METRICS_PATHS = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's
CLEAR_PATHS = ("/reset_prefix_cache", "/flush_cache")  # vLLM's and ours, SGLang's
# For servers that do not report the longest request or the layout of their KV cache.
ASSUMED_MODEL_LEN = 1 << 17
_LONGEST = 1 << 27  # most credible tokens of a request: the page draws something for each block
ASSUMED_BLOCK_SIZE = 16

_Length = Maybe[Annotated[int, Field(strict=True, gt=0, le=_LONGEST)]]


class NotReadyError(EngineStartError):
    """The server does not answer, or says that it is not ready: it may be starting."""


class _Meta(BaseModel):
    n_ctx: _Length = None  # llama.cpp's


class ModelCard(BaseModel):
    """A model in a server's list."""

    id: Name
    owned_by: Text = None
    root: Text = None  # what vLLM serves under this name
    max_model_len: _Length = None
    context_length: _Length = None
    max_context_length: _Length = None
    meta: Maybe[_Meta] = None

    @property
    def longest(self) -> int | None:
        """The most tokens of a prompt and its answer; None if the server does not say."""
        in_meta = None if self.meta is None else self.meta.n_ctx
        lengths = (self.max_model_len, self.context_length, self.max_context_length, in_meta)
        return next((length for length in lengths if length is not None), None)


class _Models(BaseModel):
    data: Maybe[list[Maybe[ModelCard]]] = None


@dataclass(frozen=True, slots=True)
class Server:
    """A server's properties, as found while attaching."""

    model: str  # the name of the model to use
    models: tuple[str, ...]  # all names that it lists
    root: str | None  # what it serves under that name, such as a hub id or a directory; None if it does not say
    dialect: Dialect
    max_model_len: int | None  # most tokens of a prompt and its answer; None if it does not say
    metrics_path: str | None  # where it has metrics; None if it has none
    # Names of its metrics; None if none is known, which may change: some appear only after a first request.
    names: LoadNames | None
    load: LoadEvent  # its load while attaching
    blocks: tuple[int, int] | None  # size and number of its KV blocks; None if it does not say
    knobs: Knobs | None  # its scheduler's settings; None if they cannot be changed
    health_path: str  # a path that it answers while it is healthy
    clear_path: str | None  # a path that clears its prefix cache; None if it has none
    # What it was started with, by its own names; empty if it does not say.
    settings: Mapping[str, bool | int | float | str]

    @property
    def info(self) -> EngineInfo:
        """The server described as an engine; unknown values are 0, "" or assumed."""
        longest = self.max_model_len or ASSUMED_MODEL_LEN
        size, count = self.blocks or (ASSUMED_BLOCK_SIZE, -(-longest // ASSUMED_BLOCK_SIZE))
        return EngineInfo(
            model=self.model,
            architecture="",
            device="server",
            dtype="",
            attention="",
            num_parameters=0,
            weight_bytes=0,
            vocab_size=0,
            block_size=size,
            num_blocks=count + 1,
            max_model_len=longest,
            kv_bytes_per_token=0,
            threads=0,
            server_settings=self.settings,
        )

    @property
    def capabilities(self) -> Capabilities:
        """What the server is known to report before its first answer."""
        title = self.dialect.title
        reasons = {
            "blocks": f"{title}'s metrics do not name blocks",
            "steps": f"{title} does not report single steps",
            "pause": f"{title} cannot be paused over HTTP",
            "inspect": f"{title} does not show what is in a block",
            "cached_tokens": f"no answer has reported how much of its prompt was cached{_hint(self.dialect.cached_hint)}",
            "server_times": f"no answer has reported how long its request waited{_hint(self.dialect.times_hint)}",
        }
        if self.knobs is None:
            reasons["knobs"] = f"{title} has no {KNOBS_PATH}, where its settings could be changed"
        if self.clear_path is None:
            reasons["clear_cache"] = (
                f"{title} has no route here that clears its prefix cache{_hint(self.dialect.clear_hint)}"
            )
        unsaid = {"queue", "kv_usage", "prefix_hit_rate"} - reported(self.load.total)
        return Capabilities.without(reasons | dict.fromkeys(sorted(unsaid), self._no_metrics))

    @property
    def _no_metrics(self) -> str:
        if self.names is not None:
            return f"{self.dialect.title}'s metrics do not include it"
        if self.metrics_path is not None:
            return f"{self.dialect.title}'s metrics have not included it yet"
        return f"{self.dialect.title} has no {METRICS_PATHS[0]} here{_hint(self.dialect.metrics_hint)}"


def reported(load: Load) -> set[str]:
    """Returns the capabilities that a load proves."""
    shown = {
        "queue": (load.running, load.waiting),
        "kv_usage": (load.kv_usage,),
        "prefix_hit_rate": (load.prefix_queries, load.prefix_hits),
    }
    return {name for name, figures in shown.items() if None not in figures}


def _hint(how: str) -> str:
    return f": {how}" if how else ""


def attach(control: Control, model: str | None, time_ns: int) -> Server:
    """Find out a server's properties.

    Args:
        model: the model to use; by default the first that the server lists.

    Raises:
        EngineStartError: it cannot be reached, refuses the key, or has no such model; one line.
    """
    try:
        listed = _list_models(control)
        card = _choose(control, listed, model)
        metrics_path, metrics = _metrics(control)
        names = load_names(metrics)
        owner = card.owned_by or ""
        return Server(
            model=card.id,
            models=tuple(listed_card.id for listed_card in listed),
            root=card.root,
            dialect=DIALECTS.get(owner) or (DIALECTS[names.dialect] if names else UNKNOWN),
            max_model_len=card.longest,
            metrics_path=metrics_path,
            names=names,
            load=read_load(metrics, names, time_ns) if names else LoadEvent(time_ns),
            blocks=read_blocks(metrics, names) if names else None,
            knobs=knobs_in(_document(control, KNOBS_PATH)),
            health_path=_health_path(control),
            clear_path=_clear_path(control, owner),
            settings=settings_in(_document(control, SERVER_INFO_PATH)) if owner == "vllm" else {},
        )
    except httpx.HTTPError as error:
        raise NotReadyError(
            f"{failure(error, control.root)}: is the server running, and is its address right?"
        ) from None


def _list_models(control: Control) -> list[ModelCard]:
    reply = control.get("/v1/models")
    if reply.status in (401, 403):
        has_key = "Authorization" in control.headers
        what = "does not accept this key: give another" if has_key else "asks for a key: give it"
        raise EngineStartError(f"{control.root} {what} with --url-api-key (api_key in a program)")
    if reply.status >= 500:
        raise NotReadyError(f"{control.root} is running but not ready: {refusal(*reply)}; try again later")
    return models_in(reply)


def models_in(reply: Reply) -> list[ModelCard]:
    """Returns the models in a reply whose ``id`` can be displayed."""
    models = _Models.model_validate(reply.document or {} if reply.status == 200 else {})
    return [card for card in models.data or [] if card is not None]


def _choose(control: Control, listed: list[ModelCard], model: str | None) -> ModelCard:
    """Returns the server's entry for the model. A model that it does not list is accepted only if it lists none."""
    for card in listed:
        if model in (None, card.id):
            return card
    if listed:
        names = ", ".join(card.id for card in listed[:10])
        raise EngineStartError(f"{control.root} has no model {model!r}: use one of {names}")
    if model is None:
        raise EngineStartError(
            f"{control.root}/v1/models lists no model: check that this is the address of the API, or name a model"
        )
    return ModelCard.model_construct(id=model)


def _metrics(control: Control) -> tuple[str | None, str]:
    """Returns the path of the server's metrics, and the metrics; None and "" if it has none.

    A route that fails or hangs does not prevent attaching.
    """
    fallback: tuple[str | None, str] = None, ""
    for path in METRICS_PATHS:
        with suppress(httpx.HTTPError):
            text = control.text(path)
            if text is not None and load_names(text) is not None:
                return path, text
            if text is not None and fallback[0] is None and not text.lstrip().startswith(("<", "[", "{")):
                fallback = path, text
    return fallback


def _document(control: Control, path: str) -> Document:
    """Returns the JSON object at a path; empty if there is none, or the route fails or hangs."""
    with suppress(httpx.HTTPError):
        return control.document(path)
    return {}


def knobs_in(document: Document) -> Knobs | None:
    """Returns the knobs of a runtime config; ``None`` if it has none, or has values that are unknown here."""
    knobs = document.get("knobs")
    if not isinstance(knobs, dict):
        return None
    try:
        return Knobs(**{name: value for name, value in knobs.items() if name in settings_of(Knobs)})
    except (TypeError, ValueError):
        return None


def _clear_path(control: Control, owner: str) -> str | None:
    """Returns the path that clears the cache: known for our server, otherwise looked up in FastAPI's list of routes."""
    if owner == "roseplay":
        return CLEAR_PATHS[0]
    paths = _document(control, "/openapi.json").get("paths")
    return next((path for path in CLEAR_PATHS if isinstance(paths, dict) and path in paths), None)


def _health_path(control: Control) -> str:
    with suppress(httpx.HTTPError):
        if control.get("/health").status in (200, 503):
            return "/health"
    return "/v1/models"
