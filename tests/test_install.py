"""How `make` installs: pip's settings reach uv, a fitting build of torch is chosen, and pip installs where uv cannot be had."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / ".ci" / "install.py"
_spec = importlib.util.spec_from_file_location("install", SCRIPT)
assert _spec and _spec.loader
install = sys.modules["install"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(install)

CUDA = [install.Download("torch", "2.13.0", 527_000_000), install.Download("nvidia-cublas", "13.1", 423_000_000)]
CPU = [install.Download("torch", "2.13.0+cpu", 192_000_000)]
ON_DISK = [install.Download("torch", "2.13.0+cpu", 0)]


def test_uv_takes_pips_settings_of_all_levels() -> None:
    listing = (
        ":env:.find-links='/wheels /more'\n:env:.default-timeout='180'\n:env:.disable-pip-version-check='1'\n"
        "global.extra-index-url='\\nhttps://a.example/simple\\nfile:///b/simple'\nglobal.find-links='/other'\n"
        "global.index-url='https://all.example/simple'\ninstall.index-url='https://mirror.example/simple'\n"
        "global.constraint='/etc/constraints.txt'\nglobal.cert='/etc/ca.crt'\n"
    )
    assert install.uv_settings(install.pip_settings(listing)) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example/simple file:///b/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "SSL_CERT_FILE": "/etc/ca.crt",
        "UV_HTTP_TIMEOUT": "180",
    }


@pytest.mark.parametrize(
    ("pips", "uvs"), [("0.5", "1"), ("1", "1"), ("15.0", "15"), ("15.2", "16"), ("1e2", "100"), ("0", "1")]
)
def test_uv_takes_pips_timeout_in_whole_seconds(pips: str, uvs: str) -> None:
    assert install.uv_settings({"timeout": pips})["UV_HTTP_TIMEOUT"] == uvs


def run(python: str, settings: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(SCRIPT), *arguments]
    return subprocess.run(command, env=dict(settings), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "said"),
    [
        (["pip"], {"PIP_TIMEOUT": "0.5"}, 0, ""),
        (["pip"], {"PIP_TIMEOUT": "nan"}, 2, "PIP_TIMEOUT to a number"),
        (["pip"], {"PIP_TIMEOUT": "soon"}, 2, "option timeout"),
        (["--torch"], {}, 2, "--torch needs a build, such as cpu"),
        (["--torch", "cpu5", "tiny"], {}, 2, "TORCH=cpu5 cannot be had, leave it out"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    arguments: list[str], settings: dict[str, str], code: int, said: str
) -> None:
    alone = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", ""),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
    }
    done = run(sys.executable, {**alone, **settings}, *(["--dry-run"] if arguments == ["pip"] else []), *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


def test_a_source_distribution_is_not_built_where_pip_may_not(tmp_path: Path) -> None:
    sdist = tmp_path / "small-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1\n")
        archive.add(tmp_path / "PKG-INFO", "small-1/PKG-INFO")
    settings = {
        "PATH": os.environ["PATH"],
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
    }
    for allowed in (":all:", "other,small"):
        done = run(sys.executable, {**settings, "PIP_ONLY_BINARY": allowed}, "--dry-run", "small")
        assert (done.returncode, "has no usable wheels" in done.stderr) == (1, True), done.stderr


class Answers:
    """uv, as far as choosing a build of torch needs it: what would be added without a build by name, and with each."""

    def __init__(self, plain: list | None, **builds: list) -> None:
        self.plain, self.builds = plain, builds

    def added(self, arguments: Sequence[str], backend: Sequence[str] = ()) -> list | None:
        return self.builds.get(backend[0].removeprefix("--torch-backend=")) if backend else self.plain


@pytest.mark.parametrize(
    ("uv", "torch", "chosen"),
    [
        (Answers(ON_DISK, auto=CUDA), None, ([], ON_DISK)),
        (Answers(CUDA, auto=CPU), None, (["--torch-backend=auto"], CPU)),
        (Answers(CUDA), None, ([], CUDA)),  # PyTorch's index does not answer
        (Answers(None), None, ([], None)),  # no index answers; the installation says why
        (Answers(ON_DISK, cpu=CPU), "cpu", ([], ON_DISK)),
        (Answers(ON_DISK, cu128=CUDA), "cu128", (["--torch-backend=cu128"], CUDA)),
        (Answers(CUDA), "cpu", (["--torch-backend=cpu"], None)),  # asked for by name: no other build in its place
        (Answers([], auto=CPU), None, ([], [])),  # torch is installed already, and stays
    ],
)
def test_the_build_of_torch(uv: Answers, torch: str | None, chosen: tuple) -> None:
    assert install.choose_build(uv, ["-r", "requirements.txt"], torch) == chosen


def test_sizes_are_those_of_the_files_that_are_not_on_the_disk() -> None:
    lock = """
packages = [
  { name = "torch", version = "2.13.0", wheels = [{ url = "https://x.example/t.whl", size = 526574961 }] },
  { name = "nvidia-nccl-cu13", version = "2.29.7", wheels = [{ url = "https://x.example/n.whl", size = 205976000 }] },
  { name = "old", version = "1", sdist = { url = "https://x.example/old.tar.gz" } },
  { name = "tqdm", version = "4", wheels = [{ url = "file:///wheels/tqdm.whl" }] },
]
"""
    packages = install.downloads(lock)
    line = "installing 4 packages: up to 733 MB to download, and 1 of unknown size"
    assert install.said(packages, "cu130") == line
    assert install.said(packages, None) == f"{line}. 206 MB of it are for NVIDIA GPUs: TORCH=cpu leaves them out"


def test_pip_installs_where_uv_cannot_be_had(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    python = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    settings = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}

    chosen = run(str(python), settings, "--torch", "cpu", "tiny")
    assert (chosen.returncode, chosen.stderr.count("\n")) == (2, 1)
    done = run(str(python), settings, "--torch", "", "tiny")
    assert done.returncode == 0, done.stderr
    assert subprocess.run([str(python), "-c", "import tiny"], check=False).returncode == 0
