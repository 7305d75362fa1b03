"""Unpacks vLLM's own tests from its source package into a folder, for `make conformance`.

    .venv/bin/python .ci/vllm_tests.py FOLDER

pip asks a source package for its metadata before it keeps it. That takes tools which vLLM's build needs and torch, which the
environment has; with no device to build for, nothing is compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from install import install

VERSION = "0.32.0"
TOOLS = ["jinja2", "packaging", "setuptools>=77,<81", "setuptools-rust", "setuptools-scm", "wheel"]


def download(folder: str) -> Path:
    """Download the source package into a folder. Raises ``subprocess.CalledProcessError``."""
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--quiet", "--dest", folder]
    variables = {**os.environ, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
    command = [sys.executable, "-m", "pip", "download", *options, f"vllm=={VERSION}"]
    subprocess.run(command, check=True, env=variables)
    return next(Path(folder).glob("vllm-*.tar.gz"))


def main() -> int:
    target = Path(sys.argv[1])
    if status := install(TOOLS, None):
        return status
    with tempfile.TemporaryDirectory() as folder, tarfile.open(download(folder)) as package:
        tests = f"vllm-{VERSION}/tests/"
        members = [member for member in package.getmembers() if member.name.startswith(tests)]
        for member in members:
            member.name = member.name.removeprefix(f"vllm-{VERSION}/")
        package.extractall(target, members, filter="data")
    return 0


if __name__ == "__main__":
    sys.exit(main())
