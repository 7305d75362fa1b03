"""A server with a key: no route responds without it, whichever part serves it; programs and browsers can send it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from roseplay.play.playground import Playground
from roseplay.play.server import create_app as create_page
from roseplay.serve import keys
from roseplay.serve.guard import allowed_hosts
from roseplay.serve.keys import COOKIE
from tests.play.app_routes import places
from tests.play.fake_engine import FakeEngine
from tests.serve.conftest import app_of

HOST = "127.0.0.1:7860"
KEY = "open-sesame"
HEADERS = {"Authorization": f"Bearer {KEY}"}
HEALTH = ("/health", "/ready")
FAR = {"Host": "evil.example"}  # refused before routing


def page_app() -> Any:
    return create_page(Playground(FakeEngine()), allowed_hosts("127.0.0.1"), key=KEY)


def api_app() -> Any:
    return app_of(FakeEngine(), key=KEY)


@pytest.fixture(scope="module", params=[page_app, api_app], ids=["page", "api"])
def app(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
def client(app: Any) -> TestClient:
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


def test_no_route_answers_without_the_key(app: Any, client: TestClient) -> None:
    for place in places(app, least=10):
        if place.method == "WEBSOCKET":
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(place.filled()):
                pass
            continue
        answer = client.request(place.method, place.filled())
        if place.path in HEALTH and place.method in ("GET", "HEAD"):
            assert place.method == "HEAD" or answer.json() == {"status": "ok"}  # no model or machine details
        else:
            assert answer.status_code == 401, place
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Authorization", "Bearer "),
        ("Authorization", f"Bearer {KEY}x"),
        ("Authorization", f"Bearer {KEY[:-1]}"),
        ("Authorization", f"Basic {KEY}"),
        ("Authorization", KEY),
        ("Authorization", "Bearer \xff"),
        ("Cookie", f"{COOKIE}={KEY}"),
        ("Cookie", f"{COOKIE}="),
        ("Cookie", ";;=\x01"),
    ],
)
def test_what_is_not_the_key_is_refused(client: TestClient, header: str, value: str) -> None:
    assert client.get("/metrics", headers={header: value.encode("latin-1")}).status_code == 401


@pytest.mark.parametrize("path", HEALTH)
def test_only_reading_health_needs_no_key(client: TestClient, path: str) -> None:
    assert client.post(path).status_code == client.delete(path).status_code == 401
    for headers in ({}, HEADERS):
        answer = client.head(path, headers=headers)
        assert (answer.status_code, answer.content) == (200, b"")


def test_a_method_that_a_path_of_the_api_does_not_take_is_refused_in_openais_shape(client: TestClient) -> None:
    for method, path, takes in (
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/v1/models", "GET"),
        ("GET", "/v1/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("POST", "/v1/runtime_config", "GET, PATCH"),
    ):
        answer = client.request(method, path, headers=HEADERS)
        assert (answer.status_code, answer.headers["allow"]) == (405, takes), path
        error = answer.json()["error"]
        assert error["message"] == f"{method} {path} is not served here: use {takes}"
        assert (error["type"], error["code"]) == ("invalid_request_error", "method_not_allowed")
    answer = client.delete("/v1/nothing", headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_no_page_of_another_site_may_frame_it(client: TestClient) -> None:
    form = client.get("/", headers={"Accept": "text/html"})
    for answer in (form, client.get("/", headers=HEADERS), client.get("/health"), client.get("/health?", headers=FAR)):
        assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"


def test_in_a_space_hugging_face_may_frame_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/roseplay")
    policy = TestClient(api_app(), base_url=f"http://{HOST}").get("/").headers["content-security-policy"]
    assert policy == "frame-ancestors 'self' https://huggingface.co https://*.hf.space"


def test_a_path_that_is_not_there_is_refused_like_the_others(client: TestClient) -> None:
    for path in ("/nothing", "/v1/nothing", "//v1/models", "/health/", "/ready?x=1/../metrics", "/key/x", "/%6bey/.."):
        answer = client.get(path)
        assert answer.status_code == (200 if path.startswith("/ready?") else 401), path


def test_a_program_sends_it_with_each_request(client: TestClient) -> None:
    for path in ("/metrics", "/v1/models", "/v1/runtime_config"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=HEADERS).status_code == 200, path
    health = client.get("/health", headers={"Authorization": f"bearer {KEY}"}).json()
    assert health["model"] == "fake-chat"


def test_the_refusal_of_the_api_has_the_shape_of_openais(client: TestClient) -> None:
    for path in ("/v1/chat/completions", "/tokenize", "/detokenize", "/reset_prefix_cache", "/version"):
        answer = client.post(path, json={})
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert "Authorization: Bearer" in answer.json()["error"]["message"]
        assert KEY not in answer.text
    for path in ("/ui/delta", "/metrics", "/health"):
        assert "Authorization: Bearer" in client.post(path, json={}).json()["detail"]


def test_a_browser_gets_a_form_and_a_cookie(client: TestClient) -> None:
    form = client.get("/metrics", headers={"Accept": "text/html,*/*;q=0.8"})
    assert form.status_code == 401
    assert 'type="password"' in form.text and 'value="/metrics"' in form.text
    wrong = client.post("/key", data={"key": "guess", "to": "/metrics"})
    assert wrong.status_code == 401 and "That is not the key." in wrong.text and "set-cookie" not in wrong.headers
    right = client.post("/key", data={"key": KEY, "to": "/metrics"})
    assert (right.status_code, right.headers["location"]) == (303, "/metrics")
    cookie = right.headers["set-cookie"]
    assert KEY not in cookie
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age="))
    assert "Secure" not in cookie
    assert client.get("/metrics").status_code == 200  # the client keeps the cookie
    client.cookies.clear()
    assert client.get("/metrics").status_code == 401
    ours = cookie.partition(";")[0]
    for others in ('prefs={"theme":"dark"}', "a[b]=c", "(x)=y", "half", 'open="'):  # of other programs here
        for sent in (f"{others}; {ours}", f"{ours}; {others}"):
            assert client.get("/metrics", headers={"Cookie": sent}).status_code == 200, sent


def test_behind_tls_the_cookie_is_for_tls_alone(app: Any) -> None:
    client = TestClient(app, base_url=f"https://{HOST}", follow_redirects=False)
    assert "Secure" in client.post("/key", data={"key": KEY}).headers["set-cookie"]


@pytest.mark.parametrize(
    "there", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "", "/a\r\nSet-Cookie: x=y"]
)
def test_the_form_leads_to_this_server_only(client: TestClient, there: str) -> None:
    assert client.post("/key", data={"key": KEY, "to": there}).headers["location"] == "/"


def test_the_form_shows_what_was_asked_for_as_text(client: TestClient) -> None:
    form = client.get('/"><script>alert(1)</script>', headers={"Accept": "text/html"})
    assert "<script>" not in form.text


def test_another_site_cannot_post_the_form(client: TestClient) -> None:
    answer = client.post("/key", data={"key": KEY}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert client.post("/key", content=b"key=" + b"x" * 20_000).status_code == 401


def test_a_wrong_key_is_answered_late(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(keys, "asyncio", SimpleNamespace(sleep=sleep))
    for key, status in ((KEY, 303), ("guess", 401)):
        assert client.post("/key", data={"key": key}).status_code == status
    assert len(slept) == 1 and slept[0] > 0
