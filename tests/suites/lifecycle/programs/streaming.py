"""A program that continues when it is interrupted. Its GPU is simulated, so that neither process imports torch.

Prints its worker's process id, streams a long answer, and reports its state on each interrupt and at the end.
"""

import multiprocessing

from roseplay import Engine, SamplingParams

if __name__ == "__main__":
    simulated = {"run_as": "h100", "worker": "process", "block_size": 4, "num_blocks": 50, "max_model_len": 64}
    with Engine("qwen3-0.6b", **simulated, slow_motion=20) as engine:
        (worker,) = multiprocessing.active_children()
        stream = engine.submit([3, 4, 5], SamplingParams(max_new_tokens=50, ignore_eos=True))
        chunks = iter(stream)
        next(chunks)
        engine.set_knobs(slow_motion=100)  # so that the answer is still running when the interrupt comes
        begun = False
        while not stream.finished:
            try:
                if not begun:  # the interrupt may come as soon as this line is read
                    begun = True
                    print("streams", worker.pid, flush=True)
                for _ in chunks:
                    pass
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                engine.set_knobs(slow_motion=1)
                chunks = iter(stream)
        print(stream.finish_reason, len(stream.token_ids), stream.error, flush=True)
        engine.set_knobs(slow_motion=100)
        stream = engine.submit([3, 4, 5], SamplingParams(max_new_tokens=50, ignore_eos=True))
        next(iter(stream))
        print("streams again", flush=True)
        stream.result(600)
