"""The probe, in which something goes wrong once a file is there. It stands on vLLM's path in a test only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import roseplay_probe


class Breaking(roseplay_probe.Probe):
    def state(self, block: Any) -> int:
        if Path(os.environ["BREAK_FILE"]).exists():
            raise RuntimeError("broken on purpose")
        return super().state(block)


roseplay_probe.Probe = Breaking
ProbedScheduler = roseplay_probe.ProbedScheduler
