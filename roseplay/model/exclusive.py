"""Locks between the engines of one process, for state that libraries share between threads.

transformers keeps the state of a load in globals, so of two loads at once, each would miss weights. And torch's check
for operations that wait for a GPU applies to all threads, so another engine's load or step would fail while it is on. Its allocator is one for all threads too.
"""

from __future__ import annotations

import threading

# Held while a model is loaded or probed, and while steps are captured.
loading = threading.RLock()
# Held while a step is launched on a GPU, and while torch's check is on.
stepping = threading.RLock()
# Held while a graph is captured, and while torch's allocator returns memory to a GPU: it waits for events, which breaks a
# capture. Whoever holds it takes neither of the others.
capturing = threading.RLock()
