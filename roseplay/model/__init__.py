"""How to compute a step. torch lives here, and nothing above imports this package before it needs it.

OpenMP's threads (libgomp's, which torch's Linux builds bring along) wait for each other by spinning, for longer than
most operations of a small batch take. On a core that another process wants too, that is waiting for a thread that
waits for the core: with one busy neighbour on two cores, decode steps of a 124M model took 282 to 334 ms where
shorter spinning takes 198 to 210; without a neighbour nothing is lost (94 ms, 340 tokens/s at batch 32), and a
single stream needs one core instead of two. It is read when torch is loaded, so it is set here, before; not when
torch is loaded already, or the user has set either variable.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
