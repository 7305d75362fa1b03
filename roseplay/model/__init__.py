"""Computing a step with torch. Packages above import this one only when they need it.

The threads of OpenMP (libgomp, which torch's Linux builds include) wait for each other by spinning, for longer than most
operations of a small batch take. If another process needs the core, a spinning thread keeps it from the thread that it
waits for: beside one busy process on two cores, decode steps of a 124M model took 282 to 334 ms, and 198 to 210 with
shorter spinning. On idle cores shorter spinning costs nothing (94 ms, 340 tokens/s at batch 32), and a single stream
needs one core instead of two. libgomp reads the variable when torch is loaded, so it is set here, unless torch is
loaded already or the user has set either variable.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
