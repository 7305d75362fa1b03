"""Opens two engines, closes the first, and exits without closing the second, whose request is still running.

At the very end, prints how the second engine's request ended. The GPU is simulated, so nothing imports torch.
"""

import atexit

from roseplay import Engine, SamplingParams

if __name__ == "__main__":
    streams = []
    # Registered before the engines, so called after the hooks that they register.
    atexit.register(lambda: print(*(stream.finish_reason for stream in streams), flush=True))
    simulated = {"run_as": "h100", "worker": "thread", "block_size": 4, "num_blocks": 50, "max_model_len": 64}
    first = Engine("qwen3-0.6b", **simulated)
    second = Engine("qwen3-0.6b", slow_motion=200, **simulated)
    streams.append(second.submit([3, 4, 5], SamplingParams(max_new_tokens=50, ignore_eos=True)))
    next(iter(streams[0]))
    first.close()
    print("ends", flush=True)
