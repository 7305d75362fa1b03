"""The version, which a tag of git gives: the tag v0.2.0 makes 0.2.0, and five commits later it is 0.2.0.post5.

It is computed where there is git's repository, or an archive that git made; packages built from them carry the result.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

UNTAGGED = "0.1.0.dev0"  # where there is neither
ARCHIVED = "$Format:%(describe:tags,match=v[0-9]*)$"  # git replaces this when it makes an archive (.gitattributes)


def current_version() -> str:
    """Returns the version of the installed package, or of the source where nothing is installed."""
    try:
        return metadata.version("roseplay")
    except metadata.PackageNotFoundError:
        return source_version()


def source_version() -> str:
    """Returns the version of the source that this file is part of. Building a package calls it."""
    if not ARCHIVED.startswith("$"):
        return version_of(ARCHIVED)
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():  # git would find the repository of a folder above
        return UNTAGGED
    command = ["git", "describe", "--tags", "--match", "v[0-9]*"]
    with suppress(OSError):  # no git
        return version_of(subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip())
    return UNTAGGED


def version_of(described: str) -> str:
    """Returns the version that ``git describe`` means; ``v0.2.0-5-g1a2b3c4`` is five commits after the tag v0.2.0."""
    return re.sub(r"-(\d+)-g[0-9a-f]+$", r".post\1", described[1:]) if described.startswith("v") else UNTAGGED
