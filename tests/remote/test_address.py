"""Flags that name other servers, and keys that may be set in the environment instead."""

from __future__ import annotations

import argparse

import pytest

from roseplay.remote.address import ServerAddress, add_server_address_flags, server_addresses


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROSEPLAY_URL_API_KEY", "ROSEPLAY_URL_B_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def addresses(flags: str) -> tuple[ServerAddress, ...]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", default="")
    add_server_address_flags(parser)
    return server_addresses(vars(parser.parse_args(flags.split())))


def test_flags_name_none_one_or_two_servers() -> None:
    assert addresses("") == addresses("--model m") == ()
    assert addresses("--url http://a") == (ServerAddress("http://a"),)
    assert addresses("--url http://a --url-api-key k --model m") == (ServerAddress("http://a", "k", "m"),)
    assert addresses("--url http://a --url-b http://b --url-b-api-key k --model m") == (
        ServerAddress("http://a", None, "m"),
        ServerAddress("http://b", "k", "m"),
    )


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
        ("--url http://a --url-b http://a", "name the same server"),
    ],
)
def test_flags_that_do_not_go_together(flags: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        addresses(flags)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(ServerAddress("http://a", "secret"))
