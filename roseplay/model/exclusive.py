"""Locks between the engines of one process, for state that libraries share between threads.

transformers keeps the state of a load in globals: two loads at once would miss weights. And torch's check for operations that
wait for a GPU applies to all threads, so that a load or a step of another engine would fail meanwhile.
"""

from __future__ import annotations

import threading

# Held while a model is loaded or probed, and while steps are captured.
loading = threading.RLock()
# Held while a step is launched on a GPU, and while torch's check is on.
stepping = threading.RLock()
