"""Binding ports, and how a server's address is announced."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from roseplay.serve.listening import address_of, announce, answers, listen


def test_a_port_is_bound_and_takes_connections_only_if_it_may() -> None:
    with listen("127.0.0.1", 0) as open_, socket.create_connection(open_.getsockname()):
        pass
    with listen("127.0.0.1", 0, accept=False) as closed:
        with pytest.raises(OSError):
            socket.create_connection(closed.getsockname())
        closed.listen()
        port = closed.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 cannot be used: Address already in use; choose"):
            listen("127.0.0.1", port)


def test_a_port_that_was_in_use_a_moment_ago_can_be_bound() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = first.accept()
            served.close()  # the server's side closes first, so its address is in TIME_WAIT
            assert client.recv(1) == b""
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("2001:db8::7", "[2001:db8::7]"),
        ("box.example", "box.example"),
    ],
)
def test_the_address_for_clients_on_this_machine(host: str, name: str) -> None:
    with listen("127.0.0.1", 0) as listener:
        assert address_of(listener, host) == f"http://{name}:{listener.getsockname()[1]}"


class Codes(BaseHTTPRequestHandler):
    """Replies with the next of the statuses listed in the path."""

    asked: list[str]

    def do_GET(self) -> None:
        codes = self.path[1:].split(",")
        self.asked.append(self.path)
        self.send_response(int(codes[min(len(self.asked), len(codes)) - 1]))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Codes.asked = []
    with HTTPServer(("127.0.0.1", 0), Codes) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(30)


@pytest.mark.parametrize(("path", "times"), [("/200", 1), ("/401", 1), ("/503,404,200", 3)])
def test_an_address_answers(address: str, path: str, times: int) -> None:
    assert answers(address + path, SimpleNamespace(should_exit=False))
    assert len(Codes.asked) == times


def test_a_server_that_ends_is_not_waited_for(address: str) -> None:
    assert not answers(f"{address}/200", SimpleNamespace(should_exit=True))
    assert not Codes.asked


def test_what_answers_is_announced(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    server = SimpleNamespace(should_exit=False)
    announce(address, ["/200", "/401"], "is live", server)
    assert capsys.readouterr().out == "roseplay is live\n"
    assert Codes.asked == ["/200", "/401"] and not server.should_exit


@pytest.mark.parametrize("ended", [False, True])
def test_what_does_not_answer_is_ended(ended: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        server = SimpleNamespace(should_exit=ended)
        announce(f"http://127.0.0.1:{silent.getsockname()[1]}", ["/"], "is live", server, within_s=0.05)
    out, said = capsys.readouterr()
    assert (out, server.should_exit) == ("", True)
    assert said == ("" if ended else "roseplay: the server did not answer within 0.05 s\n")
