"""The flags of ``roseplay serve`` for replicas on this machine, and what they start."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from roseplay.arguments import Parser, within
from roseplay.serve.serving import Opener, Options, Served


class Replicas:
    """Serves replicas of an engine with Ray Serve, see ``serve.serving.Serving``."""

    def add_flags(self, parser: Parser) -> None:
        group = parser.add_argument_group("replicas on this machine (docs/ray.md)")
        group.add_argument("--ray", action="store_true", help="serve replicas of the engine, with Ray Serve")
        group.add_argument("--replicas", type=within(1, 10**6), metavar="N", help="number of replicas (default: 1)")
        group.add_argument(
            "--routing",
            choices=("prefix", "round-robin"),
            help="route requests to the replica with the longest cached prefix or, for comparison, in turn"
            " (default: prefix)",
        )
        group.add_argument(
            "--autoscale", type=_range, metavar="A..B", help="scale from A to B, by requests and KV usage"
        )

    def opener(self, arguments: Mapping[str, Any]) -> Opener | None:
        flags = [f"--{name}" for name in ("replicas", "autoscale", "routing") if arguments[name] is not None]
        if not arguments["ray"]:
            if flags:
                raise ValueError(f"{flags[0]} needs --ray")
            return None
        if {"--replicas", "--autoscale"} <= set(flags):
            raise ValueError("give --replicas or --autoscale, not both")
        import roseplay.extras.ray.environment  # noqa: F401

        least, most = arguments["autoscale"] or (arguments["replicas"] or 1, None)
        round_robin = arguments["routing"] == "round-robin"

        @contextlib.contextmanager
        def open_replicas(options: Options) -> Iterator[Served]:
            from roseplay.extras.ray.deployment_settings import RaySettings
            from roseplay.extras.ray.local import local_engine
            from roseplay.extras.ray.monitor import RayMonitor, replicas_router
            from roseplay.serve.app import ServedEngine

            settings = RaySettings(
                options.model,
                options.config,
                options.knobs,
                replicas=least,
                most_replicas=most,
                round_robin=round_robin,
                grace_s=options.server.grace_s,
                names=options.server.served_model_name,
            )
            with local_engine(settings) as engine:
                yield Served(ServedEngine(engine), RayMonitor, [replicas_router(engine)])

        return open_replicas


REPLICAS = Replicas()


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition("..")
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) < int(most)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of replicas: use A..B, such as 1..4")
    return int(least), int(most)
