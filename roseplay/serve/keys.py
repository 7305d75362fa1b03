"""The server's key: programs send it as a bearer token; browsers send it once in a form, then as a cookie."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import re
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from roseplay.serve.body_limits import ClientLeftError, TooLargeError, read_body
from roseplay.serve.errors import refusal

PATH = "/key"  # where the form sends it
COOKIE = "roseplay_key"
COOKIE_S = 30 * 24 * 3600
_OPEN = ("/health", "/ready")  # without the key they report only their status, see ``without_key``
_WRONG_KEY_S = 0.5  # slows guessing down
_MOST_BYTES = 8192
_ANONYMOUS = "roseplay_without_key"  # key in the ASGI scope
_LOCAL = re.compile(r"/(?![/\\])[^\r\n]*")


def without_key(scope: Scope) -> bool:
    """Whether the server has a key and this request's client did not send it."""
    return bool(scope.get(_ANONYMOUS))


class KeyGate:
    """ASGI middleware: 401 for every route, mounted ones included, unless the client has the key.

    The cookie is ``HttpOnly`` and contains a digest of the key, so that a script on the page can read neither.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()
        self._cookie = hmac.new(self._key, b"roseplay's cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, path, http = Headers(scope=scope), scope["path"], scope["type"] == "http"
        if http and path == PATH:
            if (response := await self._take_form(scope, receive)) is not None:
                await response(scope, receive, send)
        elif self._has_key(scope):
            await self._app(scope, receive, send)
        elif http and scope["method"] in ("GET", "HEAD") and path in _OPEN:
            scope[_ANONYMOUS] = True
            await self._app(scope, receive, send)
        else:
            await self._refuse(path, headers)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._key):
            return True
        cookie = HTTPConnection(scope).cookies.get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(), self._cookie.encode())

    def _refuse(self, path: str, headers: Headers) -> Response:
        if "text/html" in headers.get("accept", ""):
            return _form(path, "")
        line = "this server requires a key: send it as 'Authorization: Bearer KEY'"
        more = {"WWW-Authenticate": "Bearer", "Cache-Control": "no-store"}
        return refusal(path, 401, line, "invalid_api_key", more)

    async def _take_form(self, scope: Scope, receive: Receive) -> Response | None:
        """Returns the answer to ``PATH``: the form, or a redirect back with the cookie; None if the client left."""
        if scope["method"] != "POST":
            return _form("/", "")
        try:
            fields = parse_qs((await read_body(receive, _MOST_BYTES)).decode("utf-8", "replace"))
        except ClientLeftError:
            return None
        except TooLargeError:
            return _form("/", "That is not the key.")
        there = fields.get("to", ["/"])[0]
        there = there if _LOCAL.fullmatch(there) else "/"
        if not hmac.compare_digest(fields.get("key", [""])[0].strip().encode(), self._key):
            await asyncio.sleep(_WRONG_KEY_S)
            return _form(there, "That is not the key.")
        response = RedirectResponse(quote(there, safe="/?&=%"), 303)
        secure = scope.get("scheme") == "https"
        response.set_cookie(
            COOKIE, self._cookie, max_age=COOKIE_S, httponly=True, samesite="strict", secure=secure, path="/"
        )
        return response


def _form(there: str, wrong: str) -> Response:
    """Returns the page that asks for the key and then leads to ``there``."""
    note = f'<p role="alert">{html.escape(wrong)}</p>' if wrong else ""
    body = _FORM.format(path=PATH, there=html.escape(there, quote=True), note=note)
    return HTMLResponse(body, 401, {"Cache-Control": "no-store"})


_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>roseplay: key</title><style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ display: grid; place-items: center; min-height: 100vh; margin: 0; }}
form {{ display: grid; gap: .75rem; width: min(20rem, 90vw); }}
input, button {{ font: inherit; padding: .5rem .6rem; }}
p {{ margin: 0; }} [role=alert] {{ color: light-dark(#b00020, #ff8a80); }}
</style></head><body><form method="post" action="{path}">
<label for="key">This server requires a key.</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="to" value="{there}">{note}
<button>Open</button>
</form></body></html>
"""
