"""The version is the tag's: in git's repository, in an archive that git made, and in packages built from either."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roseplay.version import UNTAGGED, version_of

REPOSITORY = Path(__file__).resolve().parent.parent
BUILT = ("pyproject.toml", "README.md", "LICENSE", ".gitattributes", "roseplay/__init__.py", "roseplay/version.py")


@pytest.mark.parametrize(
    ("described", "version"),
    [("v0.2.0", "0.2.0"), ("v1.0.0rc1-5-g1a2b3c4", "1.0.0rc1.post5"), ("", UNTAGGED), ("1a2b3c4", UNTAGGED)],
)
def test_a_description_is_a_version(described: str, version: str) -> None:
    assert version_of(described) == version


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_repository_of_a_folder_above_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "project"
    (inner / "roseplay").mkdir(parents=True)
    shutil.copy(REPOSITORY / "roseplay" / "version.py", inner / "roseplay" / "version.py")
    spec = importlib.util.spec_from_file_location("copied_version", inner / "roseplay" / "version.py")
    assert spec is not None and spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)

    def tag(at: Path, name: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for command in (("init", "-q"), (*author, "commit", "-q", "--allow-empty", "-m", "first"), ("tag", name)):
            subprocess.run(["git", *command], cwd=at, check=True, capture_output=True, timeout=60)

    tag(tmp_path, "v9.8.7")
    assert copied.source_version() == UNTAGGED
    tag(inner, "v1.2.3")
    assert copied.source_version() == "1.2.3"
    monkeypatch.setenv("PATH", "")
    assert copied.source_version() == UNTAGGED  # without git
    monkeypatch.setattr(copied, "ARCHIVED", "v2.0.0-1-gabc1234")
    assert copied.source_version() == "2.0.0.post1"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_tag_gives_the_version_to_packages_and_archives(tmp_path: Path) -> None:
    source, unpacked = tmp_path / "source", tmp_path / "unpacked"
    for name in (*BUILT, "assets/demo.jsonl", "assets/plotly/LICENSE", "assets/tiny-chat/config.json"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, source / name)

    def run(*command: str, at: Path = source) -> None:
        subprocess.run(command, cwd=at, check=True, capture_output=True, timeout=60)

    def wheel(at: Path) -> str:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", at=at)
        return next((at / "dist").glob("*.whl")).name.split("-")[1]

    assert wheel(source) == UNTAGGED  # no git here
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    run("git", "init", "-q")
    run("git", "add", ".")
    run("git", *author, "commit", "-q", "-m", "first")
    run("git", "tag", "v1.2.3")
    run("git", *author, "commit", "-q", "--allow-empty", "-m", "second")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist")
    shutil.unpack_archive(source / "dist" / "roseplay-1.2.3.post1.tar.gz", unpacked)
    assert wheel(unpacked / "roseplay-1.2.3.post1") == "1.2.3.post1"  # as the source distribution says, without git
    run("git", "archive", "-o", str(tmp_path / "tagged.zip"), "v1.2.3")
    shutil.unpack_archive(tmp_path / "tagged.zip", unpacked / "zip")
    assert wheel(unpacked / "zip") == "1.2.3"
