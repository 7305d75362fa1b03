"""The processes of a tensor parallel engine: the worker is rank 0, and starts and watches the other ranks.

A follower ends when the connection to its leader is closed or the leader's process ends. The leader's process ends when
any follower does, since no step can be computed without it; the engine then starts a new worker.
"""

from __future__ import annotations

import dataclasses
import gc
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
from roseplay.engine.processes import FOLLOWER_GONE, freeze_objects, leave_signals_to_parent
from roseplay.engine.runner import Runner, register_kernels

if TYPE_CHECKING:
    from roseplay.model.ranks import Ranks

logger = logging.getLogger(__name__)

# A follower sends this once its part of the model is loaded, or else a message that says why that failed.
LOADED = ""
# Seconds for the leader to notice by itself that a follower has ended, and to say why. NCCL would keep waiting.
GRACE_S = 2.0
END_S = 5.0


def load_parallel_runner(model: str, config: EngineConfig, reporter: Reporter) -> Runner:
    """Load the parts of a model in ``config.tensor_parallel_size`` processes, the first part in this one.

    Raises ``EngineStartError``, and whatever loading a model raises.
    """
    _stay_on_this_machine()
    processes = FollowerProcesses(model, config)
    try:
        register_kernels()

        from roseplay.model.loader import load_model
        from roseplay.model.parallel_runner import Followers, ParallelRunner

        config, ranks = _open_rank(config, 0)
        loaded = load_model(model, config, reporter, ranks)
        processes.join(ranks)
        followers = Followers(ranks, processes.connections, processes.gone)
        return ParallelRunner(loaded, config, followers, processes.end, reporter)
    except BaseException:
        processes.end()
        raise


def _stay_on_this_machine() -> None:
    """Make the libraries that connect the processes listen on the loopback interface only."""
    if "lo" in (name for _, name in socket.if_nameindex()):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, "lo")


def _open_rank(config: EngineConfig, rank: int) -> tuple[EngineConfig, Ranks]:
    """Returns this process's settings and its ``Ranks``. Raises ``UnsupportedModelError`` if there is no GPU for it.

    Processes on a CPU share its cores unless the settings say how many threads each uses.
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
    """Ranks 1 and up, each in a process of its own, which starts loading its part of the model at once.

    Attributes:
        connections: a connection to each of them.
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
            theirs.close()  # else the pipe would stay open after the process has ended
            self.connections.append(ours)
            self._processes.append(process)
        threading.Thread(target=self._watch, name="roseplay-ranks", daemon=True).start()

    def join(self, ranks: Ranks) -> None:
        """Wait until all have loaded their parts, and connect all ranks. Raises ``EngineStartError`` if one fails."""
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
        """Returns in a few words which process has ended; None if none ends within a second."""
        connections.wait([process.sentinel for process in self._processes], timeout=1.0)
        for rank, process in enumerate(self._processes, 1):
            if process.exitcode is not None:
                return f"the process of rank {rank} ended (exit code {process.exitcode})"
        return None

    def end(self) -> None:
        """End all followers and leave the group; processes that do not end by themselves in time are killed."""
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
        """End this process soon after any follower has ended, unless ``end`` was called."""
        connections.wait([process.sentinel for process in self._processes])
        if not self._ending.wait(GRACE_S):
            logger.error("%s, and with it the engine's process", self.gone())
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(FOLLOWER_GONE)


def _follow(model: str, config: EngineConfig, rank: int, store: str, leader: Connection, log_level: int) -> None:
    """The main function of a follower's process."""
    gc.disable()  # until the model is loaded, see ``freeze_objects``
    leave_signals_to_parent()
    logging.basicConfig(level=log_level)
    threading.Thread(target=_end_with_leader, daemon=True).start()
    try:
        register_kernels()

        from roseplay.model.loader import load_model
        from roseplay.model.parallel_runner import Follower

        config, ranks = _open_rank(config, rank)
        follower = Follower(load_model(model, config, ranks=ranks), config, ranks)
    except BaseException as error:  # a panic in an extension is not an Exception
        leader.send(f"{type(error).__name__}: {error}".partition("\n")[0] or "it failed")
        leader.poll(None)  # else the leader would notice the end of this process before it reads the message
        return
    freeze_objects()
    leader.send(LOADED)
    try:
        leader.recv()
        ranks.join(store)
        follower.run(leader)
    except EOFError:
        return
    except BaseException:
        logger.exception("tensor parallel rank %d failed", rank)
        os._exit(1)  # at once: the other ranks are waiting for this one
    ranks.leave()


def _end_with_leader() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)
