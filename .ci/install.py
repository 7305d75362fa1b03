"""Installs packages into the environment whose Python runs this, by uv, with pip's settings and a fitting build of torch.

    .venv/bin/python .ci/install.py [--torch cpu|cu128|auto] ARGUMENTS...

The arguments are those of ``pip install``. uv is installed first if the environment lacks it; if it cannot be had, pip
installs. Needs nothing but Python and pip.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv", "pip"]
BACKEND_S = 10  # timeout for PyTorch's own index, which not every network reaches

# pip's settings and the variables that tell uv the same. pip separates several values by spaces, as uv does unless noted.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",  # separated by commas
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",  # whole seconds
}
FLAGS = ("only-binary", "no-binary")  # uv has no variables for these and for no-index


def pip_settings(listing: str) -> dict[str, str]:
    """Returns pip's settings from what ``pip config list`` prints.

    Settings of ``install`` override those of all commands (``global``), and variables (``:env:``) override both.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for section, name, value in re.findall(r"^([\w:]+)\.([\w-]+)=(.*)$", listing, re.MULTILINE):
        sections.setdefault(section, {})[name.removeprefix("default-")] = str(ast.literal_eval(value))
    return {**sections["global"], **sections["install"], **sections[":env:"]}


def uv_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns variables for uv from pip's settings; raises ``ValueError`` for a timeout that is no number of seconds."""
    found = {SETTINGS[name]: " ".join(value.split()) for name, value in settings.items() if name in SETTINGS}
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    if timeout := found.get("UV_HTTP_TIMEOUT"):
        try:
            found["UV_HTTP_TIMEOUT"] = str(max(1, math.ceil(float(timeout))))
        except (ValueError, OverflowError):
            raise ValueError(f"pip's timeout is {timeout}: set PIP_TIMEOUT to a number of seconds") from None
    # pip takes the best version that any index has; uv would take the first index that has the package at all.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **found}


@dataclass(frozen=True)
class Download:
    """A package that an installation adds.

    Attributes:
        size: bytes; 0 for a local file, None if the index does not say.
    """

    name: str
    version: str
    size: int | None

    @property
    def local(self) -> bool:
        return self.size == 0


def downloads(lock: str) -> list[Download]:
    """Returns the packages of a pylock.toml."""
    return [_download(package) for package in tomllib.loads(lock).get("packages", [])]


def _download(package: dict) -> Download:
    file = (package.get("wheels") or [package.get("sdist") or package.get("archive") or {}])[0]
    local = "path" in file or file.get("url", "").startswith("file:")
    return Download(package["name"], package.get("version", ""), 0 if local else file.get("size"))


def said(packages: Sequence[Download], torch: str | None) -> str:
    """Returns the line that says how much is downloaded, and how to download less."""
    remote = [package for package in packages if not package.local]
    size = sum(package.size or 0 for package in remote)
    line = f"installing {len(packages)} package{'s'[: len(packages) - 1]}: up to {size / 1e6:,.0f} MB to download"
    if unknown := sum(package.size is None for package in remote):
        line += f", and {unknown} of unknown size"
    if torch is None and any(package.name.startswith("nvidia-") for package in remote):
        cuda = sum(package.size or 0 for package in remote if package.name.startswith(("nvidia-", "cuda-", "triton")))
        line += f". {cuda / 1e6:,.0f} MB of it are for NVIDIA GPUs: TORCH=cpu leaves them out"
    return line


class Uv:
    """Runs uv on this environment with pip's settings; raises ``ValueError`` for one that uv cannot be given."""

    def __init__(self) -> None:
        said = subprocess.STDOUT  # pip prints some of its errors on standard output
        listing = subprocess.run([*PIP, "config", "list"], stdout=subprocess.PIPE, stderr=said, text=True, check=False)
        if listing.returncode:  # a setting of a wrong type, on the last line
            raise ValueError(f"pip's settings cannot be read: {listing.stdout.strip().rpartition(chr(10))[2]}")
        settings = pip_settings(listing.stdout)
        self.env = {**uv_settings(settings), **os.environ, "UV_PYTHON": sys.executable}
        values = ((name, value) for name in FLAGS for value in re.split(r"[\s,]+", settings.get(name, "")) if value)
        alone = settings.get("no-index", "").lower() in ("1", "true", "yes", "on")
        self.flags = ["--no-index"] * alone + [f"--{name}={value}" for name, value in values]

    def install(self, *arguments: str, about: str = "") -> int:
        """Installs and returns the exit status. With ``about``, a build that cannot be had is told in one line on it."""
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        command, told = [*UV, "install", *quiet, *self.flags, *arguments], subprocess.PIPE if about else None
        done = subprocess.run(command, env=self.env, stderr=told, text=True, check=False)
        why = re.search(r"Failed to fetch: .*|invalid value .*", done.stderr or "")
        sys.stderr.write(f"{about}: {why[0]}\n" if done.returncode and why else done.stderr or "")
        return done.returncode

    def added(self, arguments: Sequence[str], backend: Sequence[str] = ()) -> list[Download] | None:
        """Returns what ``install`` with these arguments would add; None if that cannot be found out."""
        timeout = BACKEND_S if backend else None
        trial = self._output(timeout, "install", "--dry-run", *backend, *arguments)
        if trial is None:
            return None
        pins = "\n".join(re.findall(r"^ \+ (\S+==\S+)$", trial.stderr, re.MULTILINE))
        lock = self._output(timeout, "compile", "-", "--no-deps", "--format", "pylock.toml", *backend, pins=pins)
        return None if lock is None else downloads(lock.stdout)

    def _output(
        self, timeout: float | None, *arguments: str, pins: str = ""
    ) -> subprocess.CompletedProcess[str] | None:
        """Returns what a command of uv prints; None if it fails, or an index does not answer in time."""
        env = {"UV_HTTP_RETRIES": "1", **self.env}
        command = [*UV, *arguments, *self.flags]
        try:
            done = subprocess.run(
                command, env=env, input=pins, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        return done if done.returncode == 0 else None


def choose_build(uv: Uv, arguments: Sequence[str], torch: str | None) -> tuple[list[str], list[Download] | None]:
    """Returns uv's arguments that choose a build of torch, and what is then added, as far as that is known.

    Without ``torch``, a build on this machine's disk is taken, which pip's settings name; else the one that uv finds for
    this machine's hardware; else, where PyTorch's index does not answer, the one that the package index has.
    """
    added = uv.added(arguments)
    build = next((package for package in added or () if package.name == "torch"), None)
    if build is None and (added is not None or torch is None):  # nothing to choose, or the installation says why not
        return [], added
    if build is not None and build.local and (torch is None or build.version.endswith(f"+{torch}")):
        return [], added
    backend = [f"--torch-backend={torch or 'auto'}"]
    fitting = uv.added(arguments, backend)
    return (backend, fitting) if fitting is not None or torch is not None else ([], added)


def uv_is_here() -> bool:
    """Returns whether the environment has uv, after trying to install it."""
    if importlib.util.find_spec("uv") is None:
        subprocess.run([*PIP, "install", "--quiet", "-c", str(CONSTRAINTS), "uv"], capture_output=True, check=False)
        importlib.invalidate_caches()
    return importlib.util.find_spec("uv") is not None


def install(arguments: Sequence[str], torch: str | None) -> int:
    """Installs by uv, or by pip if there is no uv, and returns the exit status."""
    if not uv_is_here():
        if torch is not None:
            print("TORCH needs uv, which cannot be had; without TORCH, pip installs", file=sys.stderr)
            return 2
        print("uv cannot be had: pip installs, which takes longer", file=sys.stderr)
        return subprocess.run([*PIP, "install", "--quiet", *arguments], check=False).returncode
    try:
        uv = Uv()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    backend, added = choose_build(uv, arguments, torch)
    if added and not all(package.local for package in added):
        print(said(added, torch), file=sys.stderr)
    unsure = torch is not None and added is None
    about = f"TORCH={torch} cannot be had, leave it out to install the package index's build" if unsure else ""
    return uv.install(*backend, *arguments, about=about)


def main(arguments: list[str]) -> int:
    torch = None
    if arguments[:1] == ["--torch"]:
        if len(arguments) < 2:
            print("--torch needs a build, such as cpu, cu128 or auto", file=sys.stderr)
            return 2
        torch, arguments = arguments[1] or None, arguments[2:]
    return install(arguments, torch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
