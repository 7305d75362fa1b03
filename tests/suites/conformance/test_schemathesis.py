"""schemathesis reads the server's OpenAPI document and sends valid and invalid requests: never a 5xx."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="make conformance installs it"),
]


@pytest.mark.timeout(900)
def test_no_request_breaks_the_server(address: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"),
        *("--checks", "not_a_server_error", "--max-examples", "60", "--generation-deterministic", "--no-color"),
        *("--request-timeout", "60", "--exclude-path-regex", "/v1/runtime_config"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=850)  # keeps its cache there
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
