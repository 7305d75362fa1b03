"""Locks between the engines of one process, for what libraries keep for all threads.

transformers keeps what it is loading in globals: two loads at once find weights of each other's missing. And torch can watch
for what waits for a GPU only in all threads at once, so that a load or a step of another engine would fail meanwhile.
"""

from __future__ import annotations

import threading

# Held while a model is loaded or tried, and while steps are captured.
loading = threading.RLock()
# Held while a step is launched on a GPU, and while torch watches.
stepping = threading.RLock()
