"""A server's flags and their effects."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from roseplay.serve.listening import listen
from roseplay.serve.main import main, parse, warn_if_open
from roseplay.serve.options import ServerOptions


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROSEPLAY_API_KEY", "SPACE_ID"):
        monkeypatch.delenv(name, raising=False)


def options(flags: str) -> ServerOptions:
    return parse(flags.split()).server


def refused(flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(flags.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_what_no_flag_says() -> None:
    assert options("") == ServerOptions(port=8000)
    parsed = parse(["--model", "tiny-chat"])
    assert (parsed.model, parsed.opener) == ("tiny-chat", None)
    assert (parsed.config.worker, parsed.config.threads) == ("process", 1)


def test_what_flags_say() -> None:
    flags = "--host 0.0.0.0 --port 65535 --allow-host a --allow-host b --api-key k --log-level debug --log-requests"
    assert options(f"{flags} --grace 0") == ServerOptions("0.0.0.0", 65535, ("a", "b"), "k", "debug", True, 0.0)
    assert options("--grace 3600").grace_s == 3600
    sites = {
        "*": "*", "null": "null", "https://Chat.example/": "https://chat.example", "app://obsidian.md": "app://obsidian.md",
        "HTTP://a_b:080": "http://a_b", "http://a:443": "http://a:443", "https://[0::1]:443": "https://[::1]",
    }  # fmt: skip
    for site, sent in sites.items():
        assert options(f"--allow-origin https://first.example {site}").allow_origin == ("https://first.example", sent)
    assert options("--served-model-name a b --served-model-name c").served_model_name == ("a", "b", "c")
    parsed = parse("--model other --worker thread --max-batch-size 3".split())
    assert (parsed.model, parsed.config.worker, parsed.config.threads) == ("other", "thread", None)
    assert parsed.knobs.max_batch_size == 3
    assert parse(["--threads", "4"]).config.threads == 4


def test_a_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROSEPLAY_API_KEY", "from-there")
    assert options("").api_key == "from-there"
    assert options("--api-key mine").api_key == "mine"
    monkeypatch.setenv("ROSEPLAY_API_KEY", "two words")
    assert "without spaces" in refused("", capsys)
    monkeypatch.setenv("ROSEPLAY_API_KEY", "")
    assert options("").api_key is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--port 65536", "it is 65536: use 0 to 65,535"),
        ("--port -1", "it is -1: use 0 to 65,535"),
        ("--port many", "it is many: use 0 to 65,535"),
        ("--api-key=", "printable ASCII"),
        ("--grace -1", "it is -1: use 0 to 3,600"),
        ("--grace soon", "it is soon: use 0 to 3,600"),
        ("--log-level loud", "invalid choice"),
        ("--api-key schlüssel", "printable ASCII"),
        ("--api-key \x7f", "printable ASCII"),
        ("--grace 3601", "it is 3601: use 0 to 3,600"),
        ("--otlp-traces-endpoint=127.0.0.1:4318", "not the address of a collector"),
        ("--otlp-traces-endpoint=grpc://127.0.0.1:4317", "not the address of a collector"),
        ("--otlp-traces-endpoint=http://", "not the address of a collector"),
        ("--otlp-traces-endpoint=http://a:port", "not the address of a collector"),
        ("--otlp-traces-endpoint=", "not the address of a collector"),
        *(
            (
                f"--allow-origin {site}",
                f"'{site}' is not an origin: use SCHEME://HOST or SCHEME://HOST:PORT, or * for all",
            )
            for site in (
                "chat.example",
                "https://chat.example/page",
                "https://*.example",
                "https://user@chat.example",
                "https://",
                "https://chat.example?a",
                "https://a:0",
                "https://a:1\u0662",
                "https://a:65536",
                "https://a:b",
                "https://[:::1]",
                "https://\u00fc.example",
                "//chat.example",
            )
        ),
    ],
)
def test_flags_that_are_refused(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(flags, capsys)


@pytest.mark.parametrize(
    ("server", "warned"),
    [
        (ServerOptions("0.0.0.0"), True),
        (ServerOptions("0.0.0.0", api_key="k"), False),
        (ServerOptions("127.0.0.1"), False),
        (ServerOptions("127.0.0.1", allow_origin=("https://a.example",)), False),
    ],
)
def test_a_server_that_anyone_may_use_says_so(
    server: ServerOptions, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_if_open(server)
    assert capsys.readouterr().err.count("0.0.0.0 is open to other machines") == warned


@pytest.mark.parametrize("origin", ["*", "null"])
def test_an_api_for_every_web_site_says_so(origin: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn_if_open(ServerOptions("127.0.0.1", allow_origin=("https://a.example", origin)))
    warn_if_open(ServerOptions("127.0.0.1", allow_origin=(origin,), api_key="k"))
    assert capsys.readouterr().err.count("the API is open to the pages of every web site") == 1


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root, requests = logging.getLogger(), logging.getLogger("roseplay.requests")
    handlers, level, other = list(root.handlers), root.level, requests.level
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    requests.setLevel(other)


@pytest.fixture
def handler() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handler", "root_logger")
def test_a_port_in_use_is_one_line_and_sigterm_ends_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"roseplay: port {port} of 127.0.0.1 cannot be used") and said.count("\n") == 1
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_what_is_logged(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    ServerOptions(log_level="error", log_requests=True).configure_logging()
    logging.getLogger("roseplay.requests").info("one request")
    logging.getLogger("roseplay.engine").warning("unheard")
    logging.getLogger("roseplay.engine").error("bad")
    ServerOptions(log_level="info").configure_logging()
    logging.getLogger("httpx").info("chatty")
    said = capsys.readouterr().err
    assert "INFO roseplay.requests: one request" in said and "ERROR roseplay.engine: bad" in said
    assert "unheard" not in said and "chatty" not in said
