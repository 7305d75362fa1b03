"""Refusals and failures in OpenAI's format."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from roseplay.core.budget import RequestTooLargeError
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.json_text import strict_json
from roseplay.formats.text import one_line, shown
from roseplay.settings import SettingError

logger = logging.getLogger(__name__)

PREFIX = "/v1"
# Other routes that are no part of a page; where a path begins with one of the first, errors have OpenAI's format.
OF_ENGINE = ("/detokenize", "/load", "/reset_prefix_cache", "/tokenize", "/tokenizer_info", "/version")
OF_PROGRAMS = (f"{PREFIX}/", *OF_ENGINE, "/health", "/metrics", "/ready")
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
REFUSED = "refused"  # type of a validation error that names its ``field`` itself
BRANCH = "of type "  # begins the tags of the types that a field may have
RETRY_AFTER_S = 1
SHUTTING_DOWN = "the server is shutting down: try later, or another server"
_LOOK_S = 0.25  # interval of checks whether a client that waits for a reply is still connected
_TYPES = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """An error that a client receives instead of an answer.

    Args:
        status: HTTP status.
        message: one line that says what to do.
        param: the request's field that is wrong.
        code: machine-readable name of the error.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, one_line(message), param, code

    def document(self) -> dict[str, object]:
        """Returns the body in OpenAI's format."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"Retry-After": str(RETRY_AFTER_S)} if self.status == 429 else None
        return JSONResponse(self.document(), self.status, headers)


def refusal(
    path: str, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a refusal ahead of all routes: in OpenAI's format for programs, in FastAPI's for the page."""
    openai = path.startswith((f"{PREFIX}/", *OF_ENGINE))
    body = ApiError(status, message, code=code).document() if openai else {"detail": message}
    return JSONResponse(body, status, headers)


def under_their_name(error: SettingError, names: Mapping[str, str]) -> ApiError:
    """Returns the refusal of a setting, under the client's name for it, which ``names`` maps from ours."""
    return ApiError(400, f"{names.get(error.name, error.name)} {error.problem}", param=names.get(error.name))


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return strict_json(await self.body())
        except ValueError as error:
            raise HTTPException(400, str(error)) from None


class OpenAIRoute(APIRoute):
    """A route whose errors all have OpenAI's format, and whose work is cancelled when its client disconnects."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_say_why(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            work = asyncio.ensure_future(handle(strict))
            try:
                while not work.done():
                    await asyncio.wait([work], timeout=_LOOK_S)
                    # ``BodyLimits`` has read the body: what comes after it says that the client has left.
                    if not work.done() and await strict.is_disconnected():
                        return Response(status_code=499)  # never read
                return work.result()
            except asyncio.CancelledError:  # by uvicorn, whose clients get plain text else
                return ApiError(503, SHUTTING_DOWN, code="draining").response()
            except Exception as error:
                return api_error(error).response()
            finally:
                work.cancel()

        return handle_or_say_why


def refuse_unknown(path: str, request: Request) -> Response:
    """The route of every path that is not served."""
    message = f"{request.method} /{path} is not served here: {PREFIX}/models, {PREFIX}/completions and"
    message = f"{message} {PREFIX}/chat/completions are"
    if f"/{path}".startswith(f"{PREFIX}/responses"):
        message = f"{message}; send what you would send as input as messages to {PREFIX}/chat/completions"
    return ApiError(404, message, code="unknown_url").response()


def refuse_other_methods(router: APIRouter) -> None:
    """Add routes that answer 405 to methods that the router's paths do not take. Call this after adding all others."""
    served: dict[str, set[str]] = {}
    for route in router.routes:
        if isinstance(route, APIRoute):
            served.setdefault(route.path.removeprefix(router.prefix), set()).update(route.methods or ())
    for path, methods in served.items():
        others = sorted(set(METHODS) - methods)
        router.add_api_route(path, _refusing(", ".join(sorted(methods))), methods=others, include_in_schema=False)


def _refusing(allowed: str) -> Callable[[Request], Response]:
    def refuse(request: Request) -> Response:
        message = f"{request.method} {request.url.path} is not served here: use {allowed}"
        response = ApiError(405, message, code="method_not_allowed").response()
        response.headers["Allow"] = allowed
        return response

    return refuse


def api_error(error: Exception) -> ApiError:
    """Returns an error as clients receive it; unexpected ones are logged."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _invalid(error)
        case RequestTooLargeError():
            return ApiError(400, str(error), code="context_length_exceeded")
        case EngineBusyError():
            return ApiError(429, str(error), code="queue_full")
        case EngineError():
            return ApiError(503, str(error), code="engine_failed")
        case ValueError():
            return ApiError(400, str(error))
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
    logger.error("a request of the API failed", exc_info=error)
    return ApiError(500, "the server failed; its log says why", code="server_error")


def _invalid(error: RequestValidationError) -> ApiError:
    """Returns the first error of a body that does not fit its model."""
    fault = error.errors()[0]
    places = [place for place in map(str, fault["loc"][1:]) if not place.startswith(BRANCH)]
    param = ".".join(places) or None
    if not places and fault["type"] == "model_attributes_type":
        return ApiError(400, "the body is not a JSON object: send one, with Content-Type: application/json")
    message = fault["msg"]
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not a parameter of this API: leave it out", param=param, code="unsupported")
    if fault["type"] == REFUSED:
        return ApiError(400, message, param=".".join([*places, fault["ctx"]["field"]]))
    value = "" if fault["type"] == "missing" else f", not {shown(fault.get('input'))}"
    return ApiError(400, f"{param or 'the body'}: {message}{value}", param=param)
