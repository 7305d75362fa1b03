"""A mark for tests whose engines run as hardware that an extension simulates, often so that a process imports no torch."""

import pytest

from roseplay.config import SIMULATED_GPUS

needs_simulation = pytest.mark.skipif(not SIMULATED_GPUS, reason="no extension simulates hardware")
