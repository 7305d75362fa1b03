"""What is shipped: a wheel that works alone, pins that agree with the ranges, and no needless dependency."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from roseplay.own_models import SMOLLM2_HUB_ID
from tests.test_install import install
from tests.test_structure import parsed, statements

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

# Imported under this name, and installed by a declared dependency that requires it.
COMES_WITH = {
    "anyio": "gradio",
    "click": "ray",
    "llvmlite": "numba",
    "pydantic": "gradio",
    "pydantic_core": "gradio",
    "typing_extensions": "gradio",
    "fastapi": "gradio",
    "jinja2": "gradio",
    "PIL": "gradio",
    "gradio_client": "gradio",
    "httpx": "gradio",
    "starlette": "gradio",
    "uvicorn": "gradio",
    "huggingface_hub": "transformers",
    "tokenizers": "transformers",
    "tqdm": "transformers",
    "opentelemetry": "opentelemetry-sdk",
    "zmq": "pyzmq",
}


def pins(file: str) -> dict[str, Requirement]:
    lines = [line.split("#")[0].strip() for line in (REPOSITORY / file).read_text().splitlines()]
    found = [Requirement(line) for line in lines if line]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that contains only what the wheel installs."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, text=True, timeout=120)
    return target


def in_an_empty_folder(installed: Path, tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    folder = tmp_path / "empty"
    folder.mkdir()
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_wheel_holds_the_package_and_the_embedded_model_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "MODEL_CARD.md"):
        assert f"roseplay/assets/tiny-chat/{name}" in names
    assert {"roseplay/assets/plotly/plotly-basic.min.js", "roseplay/assets/plotly/LICENSE"} <= names
    for path in (REPOSITORY / "roseplay").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(REPOSITORY).as_posix() in names
    assert all(name.startswith(("roseplay/", "roseplay-")) for name in names)
    assert not [name for name in names if "/recipe/" in name or "__pycache__" in name or "/tests" in name]
    assert wheel.stat().st_size < 12e6


def test_the_embedded_model_answers_from_an_installed_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    script = """
import roseplay
from roseplay import Engine, SamplingParams

plain = dict(pack_weights=False, fuse_ops=False, record_steps=False, attention="gather", worker="thread")
with Engine("tiny-chat", **plain) as engine:
    stream = engine.submit([{"role": "user", "content": "What is TTFT?"}], SamplingParams(max_new_tokens=4))
    stream.result(timeout=60)
    print(roseplay.__file__, len(stream.token_ids), stream.finish_reason, sep="\\n")
"""
    result = in_an_empty_folder(installed, tmp_path, "-c", script)
    assert result.returncode == 0, result.stderr
    file, tokens, reason = result.stdout.strip().splitlines()[-3:]
    assert Path(file).is_relative_to(installed)
    assert 1 <= int(tokens) <= 4
    assert reason in ("stop", "length")


@pytest.mark.slow
def test_the_benchmark_runs_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    command = "-m roseplay bench streaming --num-requests 2 --max-new-tokens 2 --warmup-runs 0".split()
    result = in_an_empty_folder(installed, tmp_path, *command)
    assert result.returncode == 0, result.stderr
    assert "output tokens   " in result.stdout


def test_run_time_pins_are_exact_and_within_the_ranges() -> None:
    pinned = pins("requirements.txt")
    for requirement in pinned.values():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), f"{requirement} is no exact public version"
    assert "triton" not in pinned
    for dependency in map(Requirement, PROJECT["dependencies"]):
        version = str(pinned[canonicalize_name(dependency.name)].specifier).removeprefix("==")
        assert dependency.specifier.contains(version), f"{dependency} excludes the pinned {version}"


def test_run_time_pins_are_complete() -> None:
    """Everything that the pinned packages need is pinned too, as far as it applies here."""
    pinned = pins("requirements.txt")
    if not all(is_installed(requirement) for requirement in pinned.values()):
        pytest.skip("other versions are installed here, which may need other packages")
    for name in pinned:
        for needed in map(Requirement, metadata.distribution(name).requires or []):
            # A CUDA build of torch requires packages that a CPU build does not.
            if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and name != "torch":
                assert canonicalize_name(needed.name) in pinned, f"{name} needs {needed}, which is not pinned"


# What the hub installs in one run with a Space's requirements.txt, besides Gradio at the version of the front matter.
ADDED_TO_A_SPACE = ["gradio[oauth,mcp]=={sdk_version}", "uvicorn>=0.14.0", "websockets>=10.4", "spaces"]


def front_matter() -> dict[str, list[str]]:
    """The settings of the Space at the beginning of README.md: each with its value, or with the lines of its list."""
    settings: dict[str, list[str]] = {}
    name = ""
    for line in (REPOSITORY / "README.md").read_text().split("---\n")[1].splitlines():
        if line.startswith("  - "):
            settings[name].append(line[4:])
        else:
            name, _, value = line.partition(":")
            settings[name] = [value.strip(' "')] if value else []
    return settings


def test_a_space_resolves_with_what_the_hub_adds(tmp_path: Path) -> None:
    """Nothing is installed: uv resolves as an installation into an empty folder would."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("uv is not installed here; `make test` installs it")
    (version,), (python,) = (front_matter()[name] for name in ("sdk_version", "python_version"))
    (tmp_path / "hub.in").write_text("\n".join(ADDED_TO_A_SPACE).format(sdk_version=version))
    files = ["requirements.txt", str(tmp_path / "hub.in"), "-o", os.devnull]
    result = subprocess.run(
        [*install.UV, "compile", "--quiet", *files, "--python-version", python],
        cwd=REPOSITORY,
        env={**install.Uv().env, "UV_HTTP_RETRIES": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "Failed to fetch" in result.stderr:
        pytest.skip("the package index cannot be reached")
    assert result.returncode == 0, result.stderr


def test_a_space_has_smollm2_in_the_hubs_cache_from_the_start() -> None:
    model, files = front_matter()["preload_from_hub"][0].split()
    assert model == SMOLLM2_HUB_ID
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files.split(","))


def is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(metadata.version(requirement.name))
    except metadata.PackageNotFoundError:
        return False


def test_tool_pins_hold_all_tools_and_no_run_time_package() -> None:
    tools = pins(".ci/constraints.txt")
    assert not set(tools) & set(pins("requirements.txt"))
    for extra in PROJECT["optional-dependencies"].values():
        for requirement in map(Requirement, extra):
            name = canonicalize_name(requirement.name)
            pin = {**pins("requirements.txt"), **tools}[name]
            assert requirement.specifier.contains(str(pin.specifier).lstrip("<="))


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    oldest = pins(".ci/oldest.txt")
    for dependency in map(Requirement, PROJECT["dependencies"]):
        low = next(part.version for part in dependency.specifier if part.operator == ">=")
        if dependency.name != "safetensors":  # transformers decides
            assert oldest[dependency.name].specifier.contains(f"{low}.0")
    assert pins(".ci/newest.txt").keys() == oldest.keys()


def third_party_imports() -> dict[str, str]:
    """Top-level packages that the product imports, each with a file that does."""
    files = [REPOSITORY / "app.py", *(REPOSITORY / "roseplay").rglob("*.py"), *(REPOSITORY / "assets").rglob("*.py")]
    own = {path.stem for path in (REPOSITORY / "assets").rglob("*.py")} | {"roseplay", "corpus", "recipe"}
    found: dict[str, str] = {}
    for path in files:
        for node in statements(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for top in (name.split(".")[0] for name in names):
                if top not in sys.stdlib_module_names and top not in own:
                    found.setdefault(top, str(path.relative_to(REPOSITORY)))
    return found


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    declared = {requirement.name for requirement in map(Requirement, PROJECT["dependencies"])}
    extras = {
        requirement.name
        for extra in PROJECT["optional-dependencies"].values()
        for requirement in map(Requirement, extra)
    }
    imported = third_party_imports()
    for name, path in imported.items():
        assert COMES_WITH.get(name, canonicalize_name(name)) in declared | extras, (
            f"{path} imports {name}, which no dependency brings"
        )
    # transformers reads the embedded model's weights with safetensors, so nothing else needs to import it.
    used = {canonicalize_name(name) for name in imported} | (
        {"safetensors"} if list(REPOSITORY.glob("assets/*/*.safetensors")) else set()
    )
    unused = declared - used
    assert not unused, f"declared and never imported: {unused}"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_help_lists_the_targets() -> None:
    told = subprocess.run(["make", "-s", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "play", "test", "lint", "bench", "tiny-chat", "clean"):
        assert f"make {target} " in told


def test_no_file_that_installs_names_a_package_host() -> None:
    files = "Makefile requirements.txt pyproject.toml .ci/run .ci/install.py .ci/constraints.txt .ci/oldest.txt .ci/newest.txt"
    for name in files.split():
        text = (REPOSITORY / name).read_text()
        assert not re.search(r"(https?|file)://|--(extra-)?index-url|--find-links|(^|\s)-e \S+@|\+cpu", text), name
