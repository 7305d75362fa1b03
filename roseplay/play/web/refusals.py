"""Error replies of the page's routes, each of one line."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from roseplay.engine.errors import EngineError
from roseplay.formats.text import one_line, shown
from roseplay.serve.errors import refusal


def add_refusals(app: FastAPI) -> None:
    """Make the app reply to errors that routes raise with one line."""
    app.add_exception_handler(RequestValidationError, _say_what_is_invalid)
    app.add_exception_handler(HTTPException, _say_in_one_line)
    app.add_exception_handler(EngineError, _say_that_none_is_live)


async def _say_what_is_invalid(request: Request, error: Exception) -> Response:
    """Returns FastAPI's list of validation errors as one line."""
    assert isinstance(error, RequestValidationError)
    faults = (f"{fault['loc'][-1]} is {shown(fault.get('input'))}: {fault['msg']}" for fault in error.errors())
    return JSONResponse({"detail": "; ".join(faults)}, 422)


async def _say_that_none_is_live(request: Request, error: Exception) -> Response:
    """Answers requests that were admitted just before the engine ended because another model is loaded."""
    return JSONResponse(refusal(request.url.path, 503, one_line(error), "starting"), 503)


async def _say_in_one_line(request: Request, error: Exception) -> Response:
    """Returns a refusal as one line; its text may repeat input."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": one_line(error.detail)}, error.status_code)
