"""Flags that name other servers, and keys that may be set in the environment instead."""

from __future__ import annotations

import argparse

import pytest

from roseplay.extras.servers.address import ServerAddress, StepsAddress, add_url_flags, server_addresses
from roseplay.play.options import parse


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROSEPLAY_URL_API_KEY", "ROSEPLAY_URL_B_API_KEY", "ROSEPLAY_STEPS_KEY"):
        monkeypatch.delenv(name, raising=False)


def addresses(flags: str) -> tuple[ServerAddress, ...]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", default="")
    add_url_flags(parser)
    return server_addresses(vars(parser.parse_args(flags.split())))


def test_flags_name_none_one_or_two_servers() -> None:
    assert addresses("") == addresses("--model m") == ()
    assert addresses("--url http://a") == (ServerAddress("http://a"),)
    assert addresses("--url http://a --url-api-key k --model m") == (ServerAddress("http://a", "k", "m"),)
    assert addresses("--url http://a --url-b http://b --url-b-api-key k --model m") == (
        ServerAddress("http://a", None, "m"),
        ServerAddress("http://b", "k", "m"),
    )


def test_flags_name_where_the_first_server_tells_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--url http://a --url-b http://b --steps tcp://a:5601"
    assert [one.steps for one in addresses(flags)] == [StepsAddress("tcp://a:5601"), None]
    monkeypatch.setenv("ROSEPLAY_STEPS_KEY", "of-a")
    assert [one.steps for one in addresses(flags)] == [StepsAddress("tcp://a:5601", "of-a"), None]
    assert addresses(f"{flags} --steps-key k")[0].steps == StepsAddress("tcp://a:5601", "k")


def test_a_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSEPLAY_URL_API_KEY", "of-a")
    monkeypatch.setenv("ROSEPLAY_URL_B_API_KEY", "of-b")
    assert [one.api_key for one in addresses("--url http://a --url-b http://b")] == ["of-a", "of-b"]
    assert [one.api_key for one in addresses("--url http://a --url-api-key k --url-b http://b")] == ["k", "of-b"]
    assert addresses("") == ()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--url-b http://b", "name that one as well"),
        ("--url-api-key k", "--url-api-key needs --url"),
        ("--url http://a --url-b-api-key k", "--url-b-api-key needs --url-b"),
        ("--steps tcp://a:5601", "--steps needs --url"),
        ("--url http://a --steps-key k", "--steps-key needs --steps"),
        ("--url http://a --url-b http://a", "name the same server"),
    ],
)
def test_flags_that_do_not_go_together(flags: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        addresses(flags)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(ServerAddress("http://a", "secret", steps=StepsAddress("tcp://a:5601", "secret")))


def test_a_list_of_models_is_not_for_another_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--models a/b --url http://127.0.0.1:1".split())
    assert "leave out --models" in capsys.readouterr().err
