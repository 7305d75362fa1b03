"""Opens only those of Gradio's routes that the page and ``gradio_client`` use, and only for valid calls.

Gradio serves much besides the page: uploads, files, a proxy, components' own functions, monitoring, code editing. Here
all of that is 404. Calls are checked before Gradio gets them, since it reports any later failure as a server error.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qs, urlencode

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roseplay.formats.json_text import strict_json
from roseplay.formats.text import shown
from roseplay.serve.body_limits import ClientLeftError, read_body, replayed
from roseplay.serve.errors import OF_PROGRAMS, ApiError

OURS = ("/ui/", *OF_PROGRAMS)
# Gradio's routes that stay open, by method.
_OPEN = {
    "GET": re.compile(
        r"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/pwa_icon|/assets/.+|/static/.+"
        r"|/gradio_api/(info|queue/data|call/[^/]+/[^/]+)"
    ),
    "POST": re.compile(r"/gradio_api/(queue/join|cancel|reset|run/[^/]+|call/[^/]+)"),
}
_OPEN["HEAD"] = re.compile("/")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_NAME = 200  # characters between two slashes of a path, since file names are limited
MAX_VALUES = 64  # per event

# Statuses of refusals by the current request's endpoint; Gradio itself knows only 500.
_statuses: ContextVar[list[int] | None] = ContextVar("roseplay_statuses", default=None)


def failed_with(status: int) -> None:
    """Set the status of the reply to the current request when Gradio reports its failure."""
    if (statuses := _statuses.get()) is not None:
        statuses.append(status)


class BadCallError(Exception):
    """A call that is refused immediately, with a status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class GradioGate:
    """ASGI middleware in front of the page's routes; ``head`` is the markup with which the page begins."""

    def __init__(self, app: ASGIApp, page: gr.Blocks, head: str) -> None:
        self._app, self._page = app, page
        self._zipped = GZipMiddleware(_Begun(app, head), compresslevel=6)  # from 540 to 80 kB in a few milliseconds
        public = [fn for fn in page.fns.values() if fn.api_visibility == "public"]
        self._public = {fn.api_name: fn for fn in public if isinstance(fn.api_name, str)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path.startswith(OURS):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket" or not _is_open(scope["method"], path):
            nothing = ApiError(404, "there is nothing here: the API for programs is below /v1", code="unknown_url")
            await nothing.response()(scope, receive, send)
            return
        try:
            if scope["method"] == "POST":
                receive = await self._checked(scope, receive)
            else:
                self._check_reading(path, scope)
                scope = {**scope, "query_string": _used_of_query(scope)}
        except ClientLeftError:
            return
        except BadCallError as error:
            await JSONResponse({"error": str(error)}, error.status)(scope, receive, send)
            return
        statuses: list[int] = []
        _statuses.set(statuses)
        app = self._zipped if path in ("/", "/config") else self._app
        await app(scope, receive, _with_status(send, statuses))

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Returns ``receive`` for Gradio; raises ``BadCallError`` for an invalid call."""
        path, kind = scope["path"], Headers(scope=scope).get("content-type", "")
        if kind.split(";")[0].strip().lower() != "application/json":
            raise BadCallError(415, f"the body is {shown(kind)}: send application/json")
        body = await read_body(receive)
        try:
            call = strict_json(body)
        except ValueError as error:
            raise BadCallError(422, str(error)) from None
        if not isinstance(call, dict):
            raise BadCallError(422, 'the body must be a JSON object, such as {"data": ["hello"]}')
        for name in ("session_hash", "event_id"):
            value = call.get(name)
            if value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
                raise BadCallError(422, f"{name} is {shown(value)}: use 1 to 64 letters, digits, - or _")
        _, _, route, *name_of = path.split("/")
        if route == "queue":
            self._check_event(call)
        elif route in ("run", "call"):
            self._check_named(name_of[0], call)
            body = json.dumps(call).encode()
        elif call.get("event_id") is None:
            raise BadCallError(422, "event_id is missing")
        elif route == "cancel" and (call.get("session_hash") is None or type(call.get("fn_index")) is not int):
            raise BadCallError(422, "name the call to cancel by its session_hash, fn_index and event_id")
        return replayed(body, receive)

    def _check_named(self, name: str, call: dict[str, Any]) -> None:
        if (fn := self._public.get(name)) is None:
            raise BadCallError(404, f"there is no endpoint {shown(name)}: /gradio_api/info lists them")
        if extra := sorted(set(call) - {"data", "session_hash"}):
            raise BadCallError(422, f"unknown field {shown(extra[0])}: send data, and session_hash if there is one")
        data = call.get("data")
        if isinstance(data, list):  # arguments left out at the end have their defaults, as with ``gradio_client``
            defaults = [parameter.default for parameter in inspect.signature(fn.fn).parameters.values()]
            data += defaults[len(data) : len(fn.inputs)]
        self._check_data(data, len(fn.inputs), f"/{name}")

    def _check_event(self, call: Mapping[str, Any]) -> None:
        index = call.get("fn_index")
        fn = self._page.fns.get(index) if type(index) is int else None
        if fn is None or fn.api_visibility != "public":  # others are scripts of the page
            raise BadCallError(422, f"fn_index is {shown(index)}: there is no such function")
        if call.get("session_hash") is None:
            raise BadCallError(422, "session_hash is missing")
        for name in ("batched", "simple_format", "oauth_token", "event_data", "trigger_id"):
            if call.get(name):
                raise BadCallError(422, f"{name} is not accepted here")
        self._check_data(call.get("data"), len(fn.inputs), f"/{fn.api_name}")

    def _check_data(self, data: Any, wanted: int, what: str) -> None:
        if not isinstance(data, list) or len(data) != wanted:
            came = f"{len(data)} were sent" if isinstance(data, list) else "none were sent"
            raise BadCallError(
                422, f"{what} needs data, a list of {wanted} values in the order of its parameters: {came}"
            )
        if _has_file(data):
            raise BadCallError(422, "files are not accepted here")

    def _check_reading(self, path: str, scope: Scope) -> None:
        """Raises ``BadCallError`` for reading events of a session that has started none."""
        queue = self._page._queue  # Gradio has no public name for it
        if path.endswith("/queue/data"):
            sessions = _query(scope).get("session_hash", [""])
            if sessions[0] not in queue.pending_messages_per_session:
                raise BadCallError(404, "there is no such session")
        elif path.startswith("/gradio_api/call/"):
            event = path.rsplit("/", 1)[-1]
            if event not in queue.event_ids_to_events and not any(
                event in ids for ids in list(queue.pending_event_ids_session.values())
            ):
                raise BadCallError(404, "there is no such event")


class _Begun:
    """ASGI application whose page begins with some markup, which browsers show before Gradio's scripts have run."""

    def __init__(self, app: ASGIApp, markup: str) -> None:
        self._app, self._markup = app, markup.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message  # sent with the body, on which its length depends
                return
            if start is not None:
                body, headers = message.get("body", b""), MutableHeaders(scope=start)
                message["body"] = body.replace(b"<gradio-app", self._markup + b"<gradio-app", 1)
                if "content-length" in headers:
                    headers["content-length"] = str(int(headers["content-length"]) + len(message["body"]) - len(body))
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, sending if scope["path"] == "/" else send)


def _query(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=MAX_VALUES)
    except ValueError:
        raise BadCallError(422, f"the query has too many fields: use at most {MAX_VALUES}") from None


def _used_of_query(scope: Scope) -> bytes:
    """Returns the parts of a query that the page and ``gradio_client`` use: a session, and options of descriptions."""
    used = {
        name: value
        for name, (value, *_) in _query(scope).items()
        if name == "session_hash" or (name in ("serialize", "all_endpoints") and value.lower() in ("true", "false"))
    }
    return urlencode(used).encode()


def _is_open(method: str, path: str) -> bool:
    pattern = _OPEN.get(method)
    if pattern is None or not pattern.fullmatch(path):
        return False
    return "\0" not in path and all(len(part) <= MAX_NAME for part in path.split("/"))


def _has_file(value: Any) -> bool:
    """Whether the value contains something that Gradio would treat as a file and fetch."""
    if isinstance(value, Mapping):
        return {"path", "meta"} <= value.keys() or any(_has_file(item) for item in value.values())
    return isinstance(value, list) and any(_has_file(item) for item in value)


def _with_status(send: Send, statuses: Sequence[int]) -> Send:
    """Returns a ``send`` that replaces status 500 with the last status that a refusal has set."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 500 and statuses:
            message["status"] = statuses[-1]
        await send(message)

    return sending
