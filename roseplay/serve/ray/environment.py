"""How a Ray of this machine alone is set up. To be imported before Ray is, which reads these variables once.

Raises:
    ImportError: on import, one line, if Ray is missing.
"""

from __future__ import annotations

import os

VARIABLES = {
    # Else Ray replaces 127.0.0.1 by the machine's own address, and its servers listen at all addresses. On any system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Parts of answers go straight from replica to ingress, not through Ray's object store, and a replica's methods run on the
    # thread that receives them.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # Else replicas run at niceness 15, and all other programs of the machine before them.
    "RAY_worker_niceness": "0",
    # Ten times a second, the controller would take 5 percent of a core to find nothing to do.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
}
for name, value in VARIABLES.items():
    os.environ.setdefault(name, value)

import roseplay.serve.ray.extra  # noqa: E402, F401
