"""What an engine leaves behind when it ends, and what ends it."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from roseplay import Engine, SamplingParams
from roseplay.model.kv_cache import KVCache
from roseplay.model.runner import ModelRunner
from tests.engine.test_engine import LONG, wait_until
from tests.model.families import FAMILIES, tiny_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny_llama):
    directory = tmp_path_factory.mktemp("model")
    tiny_llama.save_pretrained(directory)
    return str(directory)


def gone(pid):
    """Whether the process has ended; one that is only waiting to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def live(kind):
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_a_closed_engine_leaves_no_model_and_no_pool(saved):
    gc.collect()
    before = live(ModelRunner), live(KVCache)
    for _ in range(3):
        with Engine(saved, block_size=4, num_blocks=50) as engine:
            engine.submit([3, 4], LONG).result(20)
    del engine
    gc.collect()
    assert (live(ModelRunner), live(KVCache)) == before


def test_the_users_model_is_collected_after_the_engine():
    model = tiny_model(FAMILIES["llama"]())
    with Engine(model, block_size=4, num_blocks=50) as engine:
        engine.submit([3, 4], LONG).result(20)
    weights = weakref.ref(next(model.parameters()))
    del model, engine
    gc.collect()
    assert weights() is None


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_engine_without_references_ends(saved, worker):
    threads = {thread.ident for thread in threading.enumerate()}
    engine = Engine(saved, worker=worker, block_size=4, num_blocks=50)
    engine.submit([3, 4], LONG).result(20)
    pid = engine.worker_pid
    forgotten = weakref.ref(engine)
    del engine
    wait_until(lambda: forgotten() is None)
    wait_until(lambda: {thread.ident for thread in threading.enumerate()} <= threads)
    assert pid is None or gone(pid)


def test_a_stream_keeps_its_engine_until_it_ends(saved):
    stream = Engine(saved, block_size=4, num_blocks=50).submit([3, 4], LONG)
    assert sum(len(chunk.token_ids) for chunk in stream) == 50
    assert stream.finish_reason == "length"
    assert not stream.cancel()


def test_closing_an_engine_keeps_the_exit_hooks_of_others(saved, monkeypatch):
    hooks = []
    monkeypatch.setattr(atexit, "register", hooks.append)
    monkeypatch.setattr(atexit, "unregister", lambda hook: hooks.remove(hook))
    first, second = (Engine(saved, block_size=4, num_blocks=50) for _ in range(2))
    first.close()
    assert len(hooks) == 1
    hooks[0]()  # what the interpreter calls as it exits
    assert not second.alive
    assert not hooks


PROGRAM = """
import sys, time
from roseplay import Engine, SamplingParams

if __name__ == "__main__":
    with Engine(sys.argv[1], worker="process", block_size=4, num_blocks=50, slow_motion=30) as engine:
        stream = engine.submit([3, 4], SamplingParams(max_new_tokens=40, ignore_eos=True))
        print(engine.worker_pid, flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        engine.set_knobs(slow_motion=1)
        print(stream.result(30).finish_reason, len(stream.token_ids), flush=True)
"""


def test_ctrl_c_does_not_end_the_worker_process(saved, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    client = subprocess.Popen(
        [sys.executable, program, saved],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    try:
        pid = int(client.stdout.readline())
        os.killpg(client.pid, signal.SIGINT)  # as a terminal does
        out, _ = client.communicate(timeout=60)
    finally:
        client.kill()
    assert out.split("\n")[:2] == ["interrupted", "length 40"]
    wait_until(lambda: gone(pid))


def test_prompts_of_ended_requests_do_not_stay_in_memory(tiny_llama):
    with Engine(tiny_llama, block_size=4, num_blocks=100) as engine:
        streams = [
            weakref.ref(engine.submit([3, 4, 5], SamplingParams(max_new_tokens=1)).result(20)) for _ in range(600)
        ]
        kept = sum(stream() is not None for stream in streams)
        assert kept < 300
        assert streams[-1]() is not None  # a reader that polls still finds the newest
