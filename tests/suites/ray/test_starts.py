"""A start that fails says why in one line, and what the documentation has for clusters is what Ray and KubeRay take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.suites.ray.conftest import MODEL

pytest.importorskip("roseplay.serve.ray.environment", reason="Ray is not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def test_a_start_that_fails_is_one_line() -> None:
    flags = ["--ray", "--model", MODEL, "--threads", "1", "--port", "0", "--kv-cache-memory", "1000"]
    ended = subprocess.run(
        [sys.executable, "-m", "roseplay", "serve", *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    why = "roseplay: the replicas did not start: kv_cache_memory is 1,000 bytes, but a block of 16 tokens takes "
    assert ended.stderr.startswith(why) and ended.stderr.count("\n") == 1


def documents() -> list[Any]:
    import yaml

    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ray.md").read_text(), re.S)]


def check_application(config: Any) -> None:
    """Check a configuration of Ray Serve by Ray's schema, and its arguments by our application."""
    from ray.serve.schema import ServeDeploySchema

    from roseplay.serve.ray.app import app

    assert set(config) <= set(ServeDeploySchema.model_fields)
    [application] = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == "roseplay.serve.ray.app:app"
    app(application.args)


def test_the_documented_configuration_is_one_of_ray_serve() -> None:
    check_application(documents()[0])


def test_the_documented_manifest_has_kuberays_fields() -> None:
    """By name and place only, since the schema of KubeRay's resources comes in no package for Python."""
    import yaml

    manifest = documents()[1]
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(manifest["spec"]) == {"serveConfigV2", "rayClusterConfig"}
    check_application(yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    cluster = manifest["spec"]["rayClusterConfig"]
    assert set(cluster) == {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / ".ci/constraints.txt").read_text()
    [workers] = cluster["workerGroupSpecs"]
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    numbers = {"replicas", "minReplicas", "maxReplicas"}
    assert set(workers) == {"groupName", "rayStartParams", "template"} | numbers
    assert all(isinstance(workers[name], int) for name in numbers)
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        assert set(pod) == {"containers", "volumes"}
        [container] = pod["containers"]
        assert set(container) == {"name", "image", "env", "resources", "volumeMounts"}
        assert all(isinstance(variable.get("value", ""), str) for variable in container["env"])
