"""Which requests pass the guard, depending on the host they name and the page they come from."""

from __future__ import annotations

import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from roseplay.serve.guard import Guard, allowed_hosts, default_host, is_loopback

OURS = "127.0.0.1:7860"


@pytest.fixture(autouse=True)
def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPACE_ID", "SPACE_HOST"):
        monkeypatch.delenv(name, raising=False)


async def reply(request: Request) -> PlainTextResponse:
    return PlainTextResponse("here", headers={"Access-Control-Allow-Origin": "*", "X-Kept": "yes"})


async def socket_reply(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


def client(*hosts: str) -> TestClient:
    app = Starlette(routes=[Route("/", reply, methods=["GET", "POST"])])
    return TestClient(Guard(app, hosts or allowed_hosts("127.0.0.1")), base_url=f"http://{OURS}")


def status(method: str, hosts: set[str] | None = None, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client(*(hosts or ())).request(method, "/", headers=named).status_code


def test_names_of_the_server() -> None:
    assert allowed_hosts("127.0.0.1", ["Box.Example"]) == {"localhost", "127.0.0.1", "::1", "box.example"}
    beyond = allowed_hosts("0.0.0.0")
    assert socket.gethostname().lower() in beyond
    assert status("GET", beyond, host="192.0.2.7:80") == status("GET", beyond, host="[2001:db8::1]") == 200
    assert status("GET", beyond, host="evil.example") == status("GET", beyond, host="[bad") == 403
    assert status("GET", host="192.0.2.7") == 403
    assert status("GET", host="LOCALHOST:1") == 200


def test_a_space_has_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_host() == "127.0.0.1"
    monkeypatch.setenv("SPACE_HOST", "Me-Demo.hf.space,")
    assert "me-demo.hf.space" not in allowed_hosts("127.0.0.1")
    monkeypatch.setenv("SPACE_ID", "me/demo")
    names = allowed_hosts("127.0.0.1")
    assert "me-demo.hf.space" in names and "" not in names
    assert default_host() == "0.0.0.0"
    # The Space's proxy uses https, so the page's origin differs from the host's.
    assert status("POST", names, host="10.0.0.1", origin="https://me-demo.hf.space") == 403
    assert status("POST", names, host="me-demo.hf.space", origin="https://me-demo.hf.space:443") == 200


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("0.0.0.0", False), ("example.com", False)],
)
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_pages_of_this_server_and_programs_may_change_something() -> None:
    assert status("POST") == status("POST", origin=f"http://{OURS}") == status("GET", origin="http://a.example") == 200
    for origin in ("http://127.0.0.1:9999", "http://localhost:7860", "null", "http://[bad", "https://a.example"):
        assert status("POST", origin=origin) == 403


def test_pages_of_other_sites_may_only_link() -> None:
    for site in ("cross-site", "same-site"):
        assert status("GET", sec_fetch_site=site, sec_fetch_mode="navigate") == 200
        assert status("GET", sec_fetch_site=site, sec_fetch_mode="cors") == 403
        assert status("POST", sec_fetch_site=site, sec_fetch_mode="navigate") == 403
    assert status("GET", sec_fetch_site="same-origin", sec_fetch_mode="cors") == 200


def test_no_reply_lets_other_origins_read_it() -> None:
    headers = client().get("/").headers
    assert "access-control-allow-origin" not in headers
    assert headers["x-kept"] == "yes"


def test_a_refusal_names_at_most_eighty_characters() -> None:
    refused = client().get("/", headers={"host": "x" * 100})
    assert "x" * 80 in refused.text and "x" * 81 not in refused.text


class TestAllowedOrigins:
    """Requests of scripts on pages of other sites."""

    @pytest.fixture(params=["https://a.example", "*"])
    def shared(self, request: pytest.FixtureRequest) -> TestClient:
        routes = [Route(path, reply, methods=["GET", "POST"]) for path in ("/v1/models", "/tokenize", "/ui/delta", "/")]
        sockets = [WebSocketRoute(path, socket_reply) for path in ("/v1/models", "/ui/delta")]
        guard = Guard(Starlette(routes=[*routes, *sockets]), allowed_hosts("127.0.0.1"), [request.param])
        client = TestClient(guard, base_url=f"http://{OURS}", headers={"Origin": "https://a.example"})
        client.params = {"listed": request.param}
        return client

    def test_they_may_use_the_routes_for_programs(self, shared: TestClient) -> None:
        listed = shared.params["listed"]
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-any"}
        allowed = shared.options("/v1/models", headers={**asks, "Access-Control-Request-Private-Network": "true"})
        assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == listed
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert allowed.headers["access-control-allow-private-network"] == "true"
        for path in ("/v1/models", "/tokenize"):
            for method in ("GET", "POST"):
                answer = shared.request(method, path, headers={"Sec-Fetch-Site": "cross-site"})
                assert (answer.text, answer.headers["access-control-allow-origin"]) == ("here", listed)
                assert "access-control-allow-credentials" not in answer.headers

    def test_nothing_else(self, shared: TestClient) -> None:
        for path in ("/", "/ui/delta"):
            assert shared.post(path).status_code == 403
            assert "access-control-allow-origin" not in shared.get(path).headers
        assert shared.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
        if shared.params["listed"] != "*":
            other = {"Origin": "https://a.example.evil"}
            assert shared.post("/v1/models", headers=other).status_code == 403
            assert "access-control-allow-origin" not in shared.get("/v1/models", headers=other).headers
            asks = {**other, "Access-Control-Request-Method": "POST"}
            assert "access-control-allow-origin" not in shared.options("/v1/models", headers=asks).headers

    @pytest.mark.parametrize("path", ["/v1/models", "/ui/delta"])
    def test_no_websocket(self, shared: TestClient, path: str) -> None:
        url = f"ws://{OURS}{path}"
        for headers in ({}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "websocket"}):
            with pytest.raises(WebSocketDenialResponse) as refused, shared.websocket_connect(url, headers=headers):
                pass
            assert "a page from https://a.example" in refused.value.text
        with shared.websocket_connect(url, headers={"Origin": f"http://{OURS}"}):
            pass
