"""Access to the server and from it: every route is closed to other sites, and the server contacts no other machine."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from roseplay.config import EngineConfig
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.loader import load_model
from roseplay.model.source import embedded_model
from roseplay.play.playground import Playground
from tests.play.app_routes import Place, places
from tests.play.conftest import client_of, connect
from tests.play.fake_engine import FakeEngine

HOST = "127.0.0.1:7860"
WITHIN_S = 240.0  # the program compiles before it serves, which is slow on a busy machine
CROSS_SITE = {"sec-fetch-site": "cross-site"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    client = client_of(Playground(FakeEngine()))
    client.follow_redirects = False
    return client


@pytest.fixture(scope="module")
def routes(client: TestClient) -> list[Place]:
    return places(client.app)


def check_refused(client: TestClient, place: Place, headers: dict[str, str]) -> None:
    """Check that the guard itself refuses such a request, in one line."""
    answer = client.request(place.method, place.filled(), headers={"host": HOST, **headers})
    assert answer.status_code == 403, place
    assert place.method == "HEAD" or answer.text.count("\n") == 1


def each_with_one_and_some_with_all(routes: list[Place], values: Sequence[str]) -> Iterator[tuple[Place, str]]:
    yield from zip(routes, itertools.cycle(values), strict=False)
    yield from itertools.product(routes[::30], values)


def test_no_route_answers_to_another_name(client: TestClient, routes: list[Place]) -> None:
    names = "evil.example evil.example:7860 127.0.0.1.evil.example 127.0.0.2 [::2] localhost.".split()
    for place, host in each_with_one_and_some_with_all(routes, ["", *names]):
        check_refused(client, place, {"host": host})


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"origin": "https://evil.example"}, "application/json"),
        ({"origin": "http://127.0.0.1:9999"}, "text/plain"),
        ({"origin": "null"}, "application/x-www-form-urlencoded"),
        ({"origin": "http://[bad"}, "application/json"),
        ({"origin": ""}, "text/plain"),
        (CROSS_SITE, "application/x-www-form-urlencoded"),
        ({"sec-fetch-site": "same-site"}, "application/json"),
        ({"origin": f"http://{HOST}", **CROSS_SITE, "sec-fetch-mode": "navigate"}, "text/plain"),
    ],
)
def test_no_route_takes_what_another_site_posts(
    client: TestClient, routes: list[Place], headers: dict[str, str], kind: str
) -> None:
    for place in routes:
        if place.method not in ("GET", "HEAD"):
            check_refused(client, place, {**headers, "content-type": kind})


def test_no_route_is_read_by_another_site(client: TestClient, routes: list[Place]) -> None:
    for place, mode in each_with_one_and_some_with_all(routes, ("no-cors", "cors", "websocket")):
        check_refused(client, place, {**CROSS_SITE, "sec-fetch-mode": mode})


def test_a_link_of_another_site_opens_the_page(client: TestClient) -> None:
    headers = {**CROSS_SITE, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=headers).status_code == 200


def test_no_answer_lets_another_origin_read_it(client: TestClient, routes: list[Place]) -> None:
    for place in routes:
        if place.method != "GET" or not place.open or place.path == "/gradio_api/queue/data":
            continue
        for origin in ("http://127.0.0.1:9999", "https://evil.example"):
            plain = client.get(place.filled(), headers={"origin": origin})
            asked = {"origin": origin, "access-control-request-method": "POST"}
            preflight = client.options(place.filled(), headers=asked)
            for answer in (plain, preflight):
                assert not [name for name in answer.headers if name.startswith("access-control-allow")], place


@pytest.mark.parametrize("path", ["/", "/gradio_api/queue/join", "/ui/delta", "/queue/join", "/ws"])
@pytest.mark.parametrize("origin", ["https://evil.example", f"http://{HOST}"])
def test_there_are_no_websockets(client: TestClient, path: str, origin: str) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(path, headers={"host": HOST, "origin": origin}):
        pass


# What the server itself connects to

BLOCKED = """
import os, sys

def look(event, args):
    if event not in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"):
        return
    address = args[:2] if event == "socket.getaddrinfo" else args[1]
    host = address[0] if isinstance(address, tuple) else None  # otherwise of a socket within this machine
    host = host.decode() if isinstance(host, bytes) else host
    if host and host not in ("::1", "localhost") and not host.startswith("127."):
        with open(os.environ["ROSEPLAY_TEST_ATTEMPTS"], "a") as file:
            file.write(f"{event} {address!r}\\n")
        raise OSError(101, f"the network is blocked in this test: {address!r}")

sys.addaudithook(look)
"""
# Set for the tests, but not for a user.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY")


@pytest.fixture(scope="module")
def blocked(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's environment, in which every attempt to reach another machine fails and is recorded."""
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "sitecustomize.py").write_text(BLOCKED)
    users = {name: value for name, value in os.environ.items() if name not in _OFFLINE}
    paths = os.pathsep.join((str(folder), str(repository)))
    return {**users, "PYTHONPATH": paths, "ROSEPLAY_TEST_ATTEMPTS": str(folder / "attempts.txt")}


@pytest.fixture
def address(repository: Path, blocked: dict[str, str]) -> Iterator[str]:
    """The program as a user starts it, once it reports that it is live."""
    command = [sys.executable, str(repository / "app.py"), "--model", "tiny-chat", "--port", "0"]
    with subprocess.Popen(
        command, env=blocked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found
            yield found.group()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.mark.timeout(600)
def test_nothing_goes_outside(address: str, blocked: dict[str, str]) -> None:
    """The start, the page with all its files, all endpoints, and inputs that contain addresses elsewhere."""
    with httpx.Client(base_url=address, timeout=WITHIN_S) as client:
        page = client.get("/").text
        for path in set(re.findall(r'(?:src|href)="(\.?/[^"]+)"', page)):
            client.get("/" + path.lstrip("./"))
        for path in ("/config", "/health", "/ui/delta", "/gradio_api/info", "/ui/plotly-basic.min.js"):
            assert client.get(path).status_code == 200, path
        program = connect(address)
        assert program.predict("hello", 4, api_name="/chat")
        assert program.predict(2, "equal", 4, api_name="/burst")["ids"]
        program.predict({"max_batch_size": 4}, api_name="/set_knobs")
        for file in ("recording.jsonl", "report.html"):  # the other files are made in a process as the report is
            assert client.get(f"/ui/export/{file}").content
        outside = "http://192.0.2.1/x"
        file = {"path": outside, "url": outside, "meta": {"_type": "gradio.FileData"}}
        for name, count in {"set_knobs": 1, "stop": 3}.items():
            answer = client.post(f"/gradio_api/run/{name}", json={"data": [file] * count})
            assert (answer.status_code, answer.json()["error"]) == (422, "files are not accepted here")
        for path in (f"/gradio_api/proxy={outside}", f"/gradio_api/file={outside}", f"/proxy={outside}"):
            assert client.get(path).status_code == 404
    attempts = Path(blocked["ROSEPLAY_TEST_ATTEMPTS"])
    assert not attempts.exists(), attempts.read_text()


def test_the_block_is_one(blocked: dict[str, str], tmp_path: Path) -> None:
    """The mechanism that the test above relies on detects an attempt."""
    attempts = tmp_path / "attempts"
    code = "import urllib.request; urllib.request.urlopen('http://192.0.2.1/', timeout=5)"
    environment = {**blocked, "ROSEPLAY_TEST_ATTEMPTS": str(attempts)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "the network is blocked" in done.stderr
    assert "192.0.2.1" in attempts.read_text()


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickled_weights_are_not_executed(tmp_path: Path, name: str) -> None:
    """Weights in a pickle are read without running any code in it."""
    folder, proof = tmp_path / "model", tmp_path / "executed"
    shutil.copytree(embedded_model(), folder, ignore=shutil.ignore_patterns("*.safetensors", "recipe"))
    (folder / name).write_bytes(pickle.dumps({"weight": Payload(proof)}))
    with pytest.raises(UnsupportedModelError, match=f"weights cannot be read|{name} cannot be read"):
        load_model(str(folder), EngineConfig(device="cpu"))
    assert not proof.exists()


def test_code_of_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    folder, proof = tmp_path / "model", tmp_path / "executed"
    shutil.copytree(embedded_model(), folder, ignore=shutil.ignore_patterns("recipe"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"import os\nos.mkdir({str(proof)!r})\n")
    with pytest.raises(UnsupportedModelError, match="trust_remote_code"):
        load_model(str(folder), EngineConfig(device="cpu"))
    assert not proof.exists()
