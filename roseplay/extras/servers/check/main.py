"""``roseplay check URL``: prints a table of the features of OpenAI's API that a server supports."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import closing

from roseplay.arguments import Parser, exit_code
from roseplay.formats.text import one_line

KEY_VARIABLE = "ROSEPLAY_API_KEY"
_SIGNS = {"yes": "yes", "no": "no ", "partly": "in part", "unknown": "?"}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the server answers chats and streams, 1 if it does not, 2 if it cannot be checked."""
    parser = Parser(
        prog="roseplay check",
        description="Send a server about twenty short requests, and print which features of OpenAI's API it supports.",
    )
    parser.add_argument("url", help="the server's URL, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="the model to use (default: the first that the server lists)")
    parser.add_argument(
        "--api-key", default=os.environ.get(KEY_VARIABLE), metavar="KEY", help=f"the API key (or set {KEY_VARIABLE})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    return exit_code(parser.prog, lambda: _check(arguments))


def _check(arguments: argparse.Namespace) -> int:
    from roseplay.extras.servers.check.probes import NEEDED, findings
    from roseplay.extras.servers.check.server import Server

    results = {}
    with closing(Server(arguments.url, api_key=arguments.api_key, model=arguments.model)) as server:
        if not arguments.json:
            print(f"{server.root}/v1, model {server.model}\n")
        for name, finding in findings(server):
            results[name] = finding
            if not arguments.json:
                print(f"  {name:<30} {_SIGNS[finding.found]:<8} {one_line(finding.detail)}".rstrip(), flush=True)
    if arguments.json:
        features = {name: {"found": result.found, "detail": result.detail} for name, result in results.items()}
        print(json.dumps({"url": server.root, "model": server.model, "models": server.models, "features": features}))
    return 0 if all(results[name].found in ("yes", "partly") for name in NEEDED) else 1
