"""``roseplay vllm``: starts a vLLM whose steps the page shows, or prints what to add to a command that starts one."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roseplay.arguments import Parser, exit_code, within
from roseplay.extras.servers.address import DEFAULT_STEPS, key_variable

INSIDE = Path(__file__).parent / "inside"  # all that vLLM's environment needs of roseplay
SCHEDULER = "roseplay_probe.ProbedScheduler"
STEPS_VARIABLE = "ROSEPLAY_STEPS"
_END_S = 30.0  # vLLM's own processes end one after another


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: that of the page, or 2 if vLLM cannot be started."""
    parser = _parser()
    arguments, of_vllm = parser.parse_known_args(argv)
    if arguments.action == "flags":
        if of_vllm:
            parser.error(f"unrecognized arguments: {shlex.join(of_vllm)}")
        print(_to_add(arguments.steps))
        return 0
    return exit_code(parser.prog, lambda: _serve(arguments, of_vllm))


def _parser() -> Parser:
    parser = Parser(prog="roseplay vllm", description="Show a vLLM from inside: its steps, its blocks and its limits.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="serve|flags")
    serve = actions.add_parser(
        "serve",
        usage="%(prog)s MODEL [vLLM's own flags] [--vllm PATH] [--page-port PORT] [--steps ADDRESS]",
        help="start vLLM's own command, and the page over it",
        description="Start `vllm serve MODEL` with all flags that are not listed here, and open the page over it.",
    )
    serve.add_argument("model", help="what vLLM serves")
    serve.add_argument("--vllm", default="vllm", metavar="PATH", help="vLLM's command (default: the one on the PATH)")
    port: Any = {"type": within(0, 65_535), "metavar": "PORT"}
    serve.add_argument("--page-port", default=7860, help="the page's port (default: 7860; 0: a free one)", **port)
    serve.add_argument("--host", default="127.0.0.1", help="address that vLLM listens on (default: 127.0.0.1)")
    serve.add_argument("--port", default=8000, help="vLLM's port (default: 8000)", **port)
    serve.add_argument("--api-key", help="vLLM's key")
    flags = actions.add_parser("flags", help="print what to add to a command or a manifest that starts vLLM")
    for action in (serve, flags):
        action.add_argument(
            "--steps",
            default=DEFAULT_STEPS,
            metavar="ADDRESS",
            help=f"where vLLM tells its steps (default: {DEFAULT_STEPS}); where it can be reached from elsewhere, "
            f"{key_variable('--steps-key')} must be set",
        )
    return parser


def _to_add(steps: str) -> str:
    """Returns what starts a vLLM that the page can look into."""
    return (
        f"# Environment, and a flag of vLLM's; on another machine, copy {INSIDE / 'roseplay_probe.py'} there.\n"
        f"PYTHONPATH={shlex.quote(str(INSIDE))} {STEPS_VARIABLE}={shlex.quote(steps)} "
        f"vllm serve MODEL --scheduler-cls {SCHEDULER}\n"
        f"# The page over it:\n"
        f"roseplay play --url http://127.0.0.1:8000/v1 --steps {steps}"
    )


def _serve(arguments: argparse.Namespace, of_vllm: Sequence[str]) -> int:
    from roseplay.play.main import main as play

    if (command := shutil.which(arguments.vllm)) is None:
        raise ValueError(f"{arguments.vllm!r} is not found: install vLLM in its own environment, and give --vllm PATH")
    host, port = arguments.host, arguments.port
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ValueError(f"something listens at port {port} already: choose another with --port")
    path = os.pathsep.join(filter(None, (str(INSIDE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, STEPS_VARIABLE: arguments.steps}
    key, url_key = ([flag, arguments.api_key] if arguments.api_key else [] for flag in ("--api-key", "--url-api-key"))
    given = [arguments.model, "--host", host, "--port", str(port), *key, *of_vllm, "--scheduler-cls", SCHEDULER]
    with _running([command, "serve", *given], environment):
        reached = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
        page = ["--url", f"http://{reached}:{port}/v1", *url_key, "--steps", arguments.steps]
        return play([*page, "--port", str(arguments.page_port)])


@contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Run vLLM in this context; should it end before, so does this process, as by Ctrl-C.

    It is in a session of its own: at Ctrl-C the page ends first, with its requests.
    """
    vllm = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    leaving = threading.Event()

    def follow() -> None:
        code = vllm.wait()
        if not leaving.is_set():
            print(f"roseplay vllm: vLLM has ended with exit code {code}: its last lines say why", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)

    follower = threading.Thread(target=follow, name="roseplay-vllm", daemon=True)
    follower.start()
    try:
        yield
    finally:
        leaving.set()
        vllm.terminate()
        follower.join(_END_S)
        if vllm.poll() is None:
            os.killpg(vllm.pid, signal.SIGKILL)
