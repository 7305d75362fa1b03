"""Protects the server from pages of other sites and from names rebound to this machine (DNS rebinding).

The page has no passwords; it is protected by listening on the loopback address. Any web site can still make a browser
on this machine send requests there. So every request must name a known host, and one that changes something must come
from a page of this server (or from no page at all, as those of programs do).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roseplay.serve.errors import METHODS, OF_PROGRAMS

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OTHER_SITES = ("cross-site", "same-site")  # to a browser, another port of this machine is the same site
EVERY_SITE = {"*", "null"}  # browsers send null for pages in files, and for frames that any site can make


def allowed_hosts(bound: str, more: Iterable[str] = ()) -> set[str]:
    """Returns the server's names: the loopback's, those in ``more``, and in a Hugging Face Space the Space's own.

    Numeric addresses are always allowed if the server listens beyond the loopback: those cannot be rebound.
    """
    names = {"localhost", "127.0.0.1", "::1", bound.lower(), *(name.lower() for name in more)}
    if not is_loopback(bound):
        names |= {"*digits*", socket.gethostname().lower()}
    if os.environ.get("SPACE_ID"):
        names |= {name for name in os.environ.get("SPACE_HOST", "").lower().split(",") if name}
    return names


def default_host() -> str:
    """Returns the loopback address, except in a Hugging Face Space, whose proxy is another machine."""
    return "0.0.0.0" if os.environ.get("SPACE_ID") else "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class Guard:
    """ASGI middleware: 403 for an unknown Host, and for requests from pages of other sites.

    Another site may link to the page and do nothing else: no reply may be read by its scripts or framed by its pages.

    Args:
        origins: other sites, or ``*`` for all, whose scripts may use the routes for programs. Browsers send no cookies with
            these requests, so that a key must be in their headers.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], origins: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = set(hosts)
        self._shared = CORSMiddleware(
            app, origins, METHODS, ["*"], allow_private_network=True, expose_headers=["Retry-After"]
        )
        # In a Space, Hugging Face's page shows it in a frame.
        framing = "'self' https://huggingface.co https://*.hf.space" if os.environ.get("SPACE_ID") else "'self'"
        self._policy = (b"content-security-policy", f"frame-ancestors {framing}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        shares = self._shares(scope, headers)
        send = self._sending(send, readable=shares)
        if refusal := self._refusal(headers, scope.get("method", "WEBSOCKET"), shares=shares):
            await PlainTextResponse(refusal, status_code=403)(scope, receive, send)
            return
        await (self._shared if shares else self._app)(scope, receive, send)

    def _shares(self, scope: Scope, headers: Headers) -> bool:
        """Whether this is a route for programs, and a request from a page of another site that may use it."""
        origin = headers.get("origin")
        allowed = origin is not None and self._shared.is_allowed_origin(origin)
        return allowed and scope["type"] == "http" and scope["path"].startswith(OF_PROGRAMS)

    def _refusal(self, headers: Headers, method: str, *, shares: bool) -> str | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return f"{host[:80]!r} is not a name of this server; to allow it, start the server with --allow-host\n"
        if shares:
            return None
        origin = headers.get("origin")
        if method not in _SAFE_METHODS and origin is not None and not self._same_site(origin, host):
            return f"a page from {origin[:80]} may not change anything here\n"
        follows_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site") in _OTHER_SITES and not follows_link:
            return "a page from another site may only link to this one\n"
        return None

    def _sending(self, send: Send, *, readable: bool) -> Send:
        """Returns a ``send`` that limits which pages may frame a reply and, unless it is readable for another origin,
        drops headers that would let one read it: Gradio allows all ports of localhost."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                kept = [(k, v) for k, v in headers if readable or not k.lower().startswith(b"access-control-allow-")]
                message = {**message, "headers": [*kept, self._policy]}
            await send(message)

        return sending

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        return name in self._hosts or ("*digits*" in self._hosts and _is_address(name))

    def _same_site(self, origin: str, host: str) -> bool:
        there = origin.lower().partition("://")[2]
        name = _hostname(there)
        # The proxy in front of a Space uses https and its own host.
        return there == host.lower() or (name in self._hosts and not is_loopback(name))


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
