"""The processes of a tensor parallel engine: the worker is rank 0, and starts and watches the others.

A follower ends with the connection to its leader, and with the leader's process. The leader's process ends with the first
follower that ends, since without it no step can be computed; the engine then starts a new worker.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import shutil
import socket
import tempfile
import threading
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.processes import FOLLOWER_GONE, leave_signals_to_parent
from roseplay.engine.runner import Runner, register_kernels

if TYPE_CHECKING:
    from roseplay.model.ranks import Ranks

logger = logging.getLogger(__name__)

# What a follower sends once its part of the model is loaded; else it sends why that failed.
LOADED = ""
# Seconds in which the leader may find out by itself, and say why, that a follower has ended. NCCL would wait on.
GRACE_S = 2.0
END_S = 5.0


def load_parallel_runner(model: str, config: EngineConfig, reporter: Reporter) -> Runner:
    """Load a model's parts in as many processes as ``config.tensor_parallel_size`` says; this one has the first.

    Raises ``EngineStartError``, and what loading a model raises.
    """
    _stay_on_this_machine()
    processes = FollowerProcesses(model, config)
    try:
        from roseplay.model.loader import load_model
        from roseplay.model.parallel_runner import Followers, ParallelRunner

        register_kernels()
        config, ranks = _open_rank(config, 0)
        loaded = load_model(model, config, reporter, ranks)
        processes.join(ranks)
        followers = Followers(ranks, processes.connections, processes.gone)
        return ParallelRunner(loaded, config, followers, processes.end, reporter)
    except BaseException:
        processes.end()
        raise


def _stay_on_this_machine() -> None:
    """Let the libraries that connect the processes listen on the loopback interface only."""
    if "lo" in (name for _, name in socket.if_nameindex()):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, "lo")


def _open_rank(config: EngineConfig, rank: int) -> tuple[EngineConfig, Ranks]:
    """Returns this process's settings, and its place among the others. Raises ``UnsupportedModelError`` without a GPU for it.

    Processes on a CPU share its cores, if the settings do not say how many threads each has.
    """
    import torch

    from roseplay.model.devices import rank_device
    from roseplay.model.ranks import Ranks

    size, device = config.tensor_parallel_size, rank_device(config, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif config.threads is None:
        config = dataclasses.replace(config, threads=max(1, torch.get_num_threads() // size))
    return config, Ranks(rank, size, device)


class FollowerProcesses:
    """Ranks 1 and up, each in a process of its own, which loads its part of the model at once.

    Attributes:
        connections: to each of them.
    """

    def __init__(self, model: str, config: EngineConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.mkdtemp(prefix="roseplay-ranks-")
        self._store = str(Path(self._folder) / "store")
        self._ending = threading.Event()
        self._ranks: Ranks | None = None
        self.connections: list[Connection] = []
        self._processes = []
        for rank in range(1, config.tensor_parallel_size):
            ours, theirs = context.Pipe()
            arguments = (model, config, rank, self._store, theirs, logging.getLogger().level)
            process = context.Process(target=_follow, args=arguments, name=f"roseplay-rank-{rank}", daemon=True)
            process.start()
            theirs.close()  # else it would outlive the process
            self.connections.append(ours)
            self._processes.append(process)
        threading.Thread(target=self._watch, name="roseplay-ranks", daemon=True).start()

    def join(self, ranks: Ranks) -> None:
        """Wait until each has loaded its part, and connect all ranks. Raises ``EngineStartError`` if one could not."""
        for rank, connection in enumerate(self.connections, 1):
            try:
                message = connection.recv()
            except (EOFError, OSError):
                message = self.gone() or "it ended"
            if message != LOADED:
                raise EngineStartError(f"tensor parallel rank {rank} could not start: {message}")
        for connection in self.connections:
            connection.send(LOADED)
        self._ranks = ranks
        ranks.join(self._store)

    def gone(self) -> str | None:
        """Which of them has ended, in a few words; None if none has within a second."""
        connections.wait([process.sentinel for process in self._processes], timeout=1.0)
        for rank, process in enumerate(self._processes, 1):
            if process.exitcode is not None:
                return f"the process of rank {rank} ended (exit code {process.exitcode})"
        return None

    def end(self) -> None:
        """End them, in order if they have started and come to it soon, and leave the group."""
        self._ending.set()
        for connection in self.connections:
            connection.close()
        if self._ranks is not None:
            self._ranks.leave()
        for process in self._processes:
            process.join(END_S if self._ranks is not None else 0)
            if process.is_alive():
                process.kill()
                process.join(END_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        """End this process soon after the first follower, unless they are ended on purpose."""
        connections.wait([process.sentinel for process in self._processes])
        if not self._ending.wait(GRACE_S):
            logger.error("%s, and with it the engine's process", self.gone())
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(FOLLOWER_GONE)


def _follow(model: str, config: EngineConfig, rank: int, store: str, leader: Connection, log_level: int) -> None:
    """What a follower's process runs."""
    leave_signals_to_parent()
    logging.basicConfig(level=log_level)
    threading.Thread(target=_end_with_leader, daemon=True).start()
    try:
        from roseplay.model.loader import load_model
        from roseplay.model.parallel_runner import Follower

        register_kernels()
        config, ranks = _open_rank(config, rank)
        follower = Follower(load_model(model, config, ranks=ranks), config, ranks)
    except BaseException as error:  # a panic in an extension is no Exception
        leader.send(f"{type(error).__name__}: {error}".partition("\n")[0] or "it failed")
        leader.poll(None)  # or this end would be noticed before the message
        return
    leader.send(LOADED)
    try:
        leader.recv()
        ranks.join(store)
        follower.run(leader)
    except EOFError:
        return
    except BaseException:
        logger.exception("tensor parallel rank %d failed", rank)
        os._exit(1)  # at once: the others wait for it
    ranks.leave()


def _end_with_leader() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)
