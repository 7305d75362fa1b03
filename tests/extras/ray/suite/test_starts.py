"""A start that fails says why in one line, and what the documentation has for clusters is what Ray and KubeRay take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extras.ray.suite.conftest import MODEL

pytest.importorskip("roseplay.extras.ray.environment", reason="Ray is not installed", exc_type=ImportError)
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


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("replicas=2", "model is missing"),
        ("model=m nonsense=1", "nonsense is not known: use model, replicas, most_replicas, engine, knobs, hosts,"),
        ("model=m replicas=two", "replicas should be a valid integer"),
        ("model=m replicas=0", "replicas is 0: use at least 1"),
        ("model=m round_robin=maybe", "round_robin should be a valid boolean"),
        ("model=m engine=x", "engine must be a JSON object, not 'x'"),
        ("model=m allow_origin=a.example", "'a.example' is not an origin: use SCHEME://HOST"),
        ({"model": "m", "engine": {"nonsense": 1}}, "unknown setting nonsense"),
        ({"model": "m", "knobs": {"max_batch_size": 0}}, "max_batch_size is 0"),
        ({"model": "m", "engine": {"num_blocks": "many"}}, "num_blocks is 'many'"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_serve_run_is_one_line(args: Any, line: str) -> None:
    from click import command
    from click.testing import CliRunner
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

    from roseplay.extras.ray.app import app

    given = dict(arg.split("=") for arg in args.split()) if isinstance(args, str) else args
    ended = CliRunner().invoke(command()(lambda: build(app, given)))  # as `serve run` does, before it starts a Ray
    assert ended.exit_code == 2 and ended.output.startswith(f"Error: {line}") and ended.output.count("\n") == 1


def documents() -> list[Any]:
    import yaml

    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ray.md").read_text(), re.S)]


def check_application(config: Any) -> None:
    """Check a configuration of Ray Serve by Ray's schema, and its arguments by our application."""
    from ray.serve.schema import ServeDeploySchema

    from roseplay.extras.ray.app import app

    assert set(config) <= set(ServeDeploySchema.model_fields)
    [application] = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == "roseplay.extras.ray.app:app"
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
