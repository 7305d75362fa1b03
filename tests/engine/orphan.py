"""Run as a program: starts an engine in a process, says the worker's pid, and waits to be killed."""

import sys
import time

from roseplay import Engine

if __name__ == "__main__":
    with Engine(sys.argv[1], worker="process", block_size=4, num_blocks=50) as engine:
        print(engine._transport.pid, flush=True)
        time.sleep(120)
