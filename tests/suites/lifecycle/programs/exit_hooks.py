"""Opens two engines, closes the first, and exits without closing the second, whose request is still running.

Argument: a model's directory. At the very end, prints how the second engine's request ended.
"""

import atexit
import sys

from roseplay import Engine, SamplingParams

if __name__ == "__main__":
    streams = []
    # Registered before the engines, so called after the hooks that they register.
    atexit.register(lambda: print(*(stream.finish_reason for stream in streams), flush=True))
    cheap = {"block_size": 4, "num_blocks": 50, "pack_weights": False, "fuse_ops": False, "record_steps": False}
    first = Engine(sys.argv[1], **cheap)
    second = Engine(sys.argv[1], slow_motion=200, **cheap)
    streams.append(second.submit([3, 4, 5], SamplingParams(max_new_tokens=50, ignore_eos=True)))
    next(iter(streams[0]))
    first.close()
    print("ends", flush=True)
