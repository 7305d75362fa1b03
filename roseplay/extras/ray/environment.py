"""Sets the environment variables of a Ray on this machine alone. Import this before Ray, which reads them only once.

Raises:
    ImportError: on import, one line, if Ray is missing.
"""

from __future__ import annotations

import os

VARIABLES = {
    # Otherwise, on any system, Ray replaces 127.0.0.1 with the machine's own address and listens on all addresses.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Parts of answers go straight from replica to ingress, not through Ray's object store, and a replica's methods run
    # on the thread that receives the calls.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # Otherwise replicas run at niceness 15, behind all other programs of the machine.
    "RAY_worker_niceness": "0",
    # By default the controller looks ten times a second, which takes 5 percent of a core even without work.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
}
for name, value in VARIABLES.items():
    os.environ.setdefault(name, value)

import roseplay.extras.ray.extra  # noqa: E402, F401
