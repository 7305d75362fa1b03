"""Binding ports, and how a server's address is announced."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Response

from roseplay.serve.listening import address_of, announce, answers, listen
from tests.at_a_port import at_a_port


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


class Codes:
    """A server that replies with the next of the statuses listed in the path."""

    address = ""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.app = FastAPI()

        @self.app.get("/{codes}")
        def reply(codes: str) -> Response:
            statuses = codes.split(",")
            self.asked.append(f"/{codes}")
            return Response(status_code=int(statuses[min(len(self.asked), len(statuses)) - 1]))


@pytest.fixture
def codes() -> Iterator[Codes]:
    codes = Codes()
    with at_a_port(codes.app) as codes.address:
        yield codes


@pytest.mark.parametrize(("path", "times"), [("/200", 1), ("/401", 1), ("/503,404,200", 3)])
def test_an_address_answers(codes: Codes, path: str, times: int) -> None:
    assert answers(codes.address + path, SimpleNamespace(should_exit=False))
    assert len(codes.asked) == times


def test_a_server_that_ends_is_not_waited_for(codes: Codes) -> None:
    assert not answers(f"{codes.address}/200", SimpleNamespace(should_exit=True))
    assert not codes.asked


def test_what_answers_is_announced(codes: Codes, capsys: pytest.CaptureFixture[str]) -> None:
    server = SimpleNamespace(should_exit=False)
    announce(codes.address, ["/200", "/401"], "is live", server)
    assert capsys.readouterr().out == "roseplay is live\n"
    assert codes.asked == ["/200", "/401"] and not server.should_exit


@pytest.mark.parametrize("ended", [False, True])
def test_what_does_not_answer_is_ended(ended: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        server = SimpleNamespace(should_exit=ended)
        announce(f"http://127.0.0.1:{silent.getsockname()[1]}", ["/"], "is live", server, within_s=0.05)
    out, said = capsys.readouterr()
    assert (out, server.should_exit) == ("", True)
    assert said == ("" if ended else "roseplay: the server did not answer within 0.05 s\n")
