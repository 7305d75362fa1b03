"""A program that starts an engine in one or more processes, prints the worker's pid, and waits to be killed."""

import sys
import time

from roseplay import Engine

if __name__ == "__main__":
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with Engine(sys.argv[1], worker="process", tensor_parallel_size=size, block_size=4, num_blocks=50) as engine:
        print(engine._transport.pid, flush=True)
        time.sleep(120)
