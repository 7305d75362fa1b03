"""A program that starts an engine in one or more processes, prints the worker's pid, and waits to be killed.

Arguments: a model, the number of its processes, and the GPU to simulate, if any.
"""

import sys
import time

from roseplay import Engine

if __name__ == "__main__":
    model, size, gpu = (*sys.argv[1:], *("1", None)[len(sys.argv) - 2 :])
    settings = {"tensor_parallel_size": int(size), "block_size": 4, "num_blocks": 50, "run_as": gpu}
    with Engine(model, worker="process", **settings) as engine:
        print(engine.worker_pid, flush=True)
        time.sleep(120)
