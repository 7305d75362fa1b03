"""Another server's address, key and model, and the flags that set them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_STEPS = "tcp://127.0.0.1:5601"


@dataclass(frozen=True, slots=True)
class StepsAddress:
    """Where the probe inside a vLLM tells its steps, such as ``tcp://host:5601``; it takes orders at the next port."""

    url: str
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The server that an ``HttpEngine`` connects to."""

    url: str  # of the API, such as ``http://host:8000/v1``
    api_key: str | None = field(default=None, repr=False)  # None if the server requires none; never shown
    model: str | None = None  # one that it serves; None means the first that it lists
    steps: StepsAddress | None = None  # where its steps are told; None if they are not


def add_url_flags(group: Any) -> None:
    """Add the flags that name other servers; see ``server_addresses``."""
    group.add_argument(
        "--url",
        metavar="URL",
        help="use another server with OpenAI's API instead, such as http://host:8000/v1; --model then selects one of "
        "its models (default: the first)",
    )
    group.add_argument("--url-b", metavar="URL", help="a second server, for the lab to compare with the first")
    for flag, whose in (("--url-api-key", "the server's"), ("--url-b-api-key", "the second server's")):
        group.add_argument(flag, metavar="KEY", help=f"{whose} key (or set {key_variable(flag)})")
    group.add_argument(
        "--steps",
        metavar="ADDRESS",
        help="where the probe in the vLLM of --url tells its steps, such as tcp://host:5601 "
        f"(play: {DEFAULT_STEPS} by default, if --url is on this machine and its vLLM has one)",
    )
    group.add_argument("--steps-key", metavar="KEY", help=f"the probe's key (or set {key_variable('--steps-key')})")


def key_variable(flag: str) -> str:
    """Returns the environment variable that can replace a flag for a key."""
    return "ROSEPLAY_" + flag.removeprefix("--").replace("-", "_").upper()


def server_addresses(arguments: Mapping[str, Any]) -> tuple[ServerAddress, ...]:
    """Returns the servers that the flags name, at most two. Raises ``ValueError`` for only the second, or one twice."""
    url, second = arguments["url"], arguments["url_b"]
    for flag, needed in (("steps", "url"), ("steps_key", "steps")):
        if arguments.get(flag) is not None and arguments[needed] is None:
            raise ValueError(f"--{flag.replace('_', '-')} needs --{needed}")
    if second is None and arguments["url_b_api_key"] is not None:
        raise ValueError("--url-b-api-key needs --url-b")
    if url is None:
        if second is not None:
            raise ValueError("--url-b is compared with the server of --url: name that one as well")
        if arguments["url_api_key"] is not None:
            raise ValueError("--url-api-key needs --url")
        return ()
    model = arguments["model"] or None
    probe = arguments.get("steps")
    steps = None if probe is None else StepsAddress(probe, key_of(arguments, "--steps-key"))
    first = ServerAddress(url, key_of(arguments, "--url-api-key"), model, steps)
    if second is None:
        return (first,)
    if second == url:
        raise ValueError("--url and --url-b name the same server")
    return (first, ServerAddress(second, key_of(arguments, "--url-b-api-key"), model))


def key_of(arguments: Mapping[str, Any], flag: str) -> str | None:
    """Returns a key from its flag, or else from the environment."""
    return arguments[flag.removeprefix("--").replace("-", "_")] or os.environ.get(key_variable(flag)) or None
