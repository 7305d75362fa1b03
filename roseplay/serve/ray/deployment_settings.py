"""A deployment's model, settings and number of replicas."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from roseplay.config import EngineConfig, Knobs


@dataclass(frozen=True)
class RaySettings:
    """A model with the engine's settings, the same for each replica.

    Attributes:
        replicas: their number; with an autoscaler, the initial and least number.
        most_replicas: the most that the autoscaler may start; None means no autoscaler.
        round_robin: send requests to replicas in turn, whatever they hold; for comparison.
        loopback: whether replicas can be reached only from this machine.
        names: of the model for clients, see ``ModelNames``.
        grace_s: how long a replica that shuts down may take to finish its requests.
    """

    model: str
    config: EngineConfig = field(default_factory=EngineConfig)
    knobs: Knobs = field(default_factory=Knobs)
    replicas: int = 1
    most_replicas: int | None = None
    round_robin: bool = False
    grace_s: float = 30.0
    loopback: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        most = self.most_replicas
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: use at least 1")
        if most is not None and most < self.replicas:
            raise ValueError(f"autoscale is {self.replicas}..{most}: the second number is the larger one")

    @property
    def max_replicas(self) -> int:
        return self.most_replicas or self.replicas

    def on_this_machine(self) -> RaySettings:
        """Returns the settings for the loopback address, with threads for each replica's share of this machine's CPUs.

        Raises:
            ValueError: the replicas need more threads than there are CPUs.
        """
        cpus = num_cpus()
        threads = self.config.threads or max(1, cpus // self.max_replicas)
        if threads * self.max_replicas > cpus:
            raise ValueError(
                f"{self.max_replicas} replicas of {threads} thread{'s' * (threads != 1)} need"
                f" {threads * self.max_replicas} CPUs, and this machine has {cpus}: use at most {cpus // threads} replicas"
            )
        return replace(self, config=replace(self.config, threads=threads), loopback=True)


def num_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
