"""A deployment's model, settings and number of replicas."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from roseplay.config import EngineConfig, Knobs
from roseplay.traffic.environment import num_cpus as num_cpus


@dataclass(frozen=True)
class RaySettings:
    """A model with the engine's settings, the same for each replica."""

    model: str
    config: EngineConfig = field(default_factory=EngineConfig)
    knobs: Knobs = field(default_factory=Knobs)
    replicas: int = 1  # their number; with an autoscaler, the initial and least number
    most_replicas: int | None = None  # the most that the autoscaler may start; None means no autoscaler
    round_robin: bool = False  # send requests to replicas in turn, whatever they hold; for comparison
    grace_s: float = 30.0  # how long a replica that shuts down may take to finish its requests
    names: tuple[str, ...] = ()  # of the model for clients, see ``ModelNames``

    def __post_init__(self) -> None:
        most = self.most_replicas
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: use at least 1")
        if most is not None and most < self.replicas:
            raise ValueError(f"autoscale is {self.replicas}..{most}: the second number is the larger one")

    @property
    def max_replicas(self) -> int:
        return self.most_replicas or self.replicas

    @property
    def processes(self) -> int:
        """How many processes compute a replica's steps, each with threads and a GPU of its own."""
        return 1 if self.config.run_as is not None else self.config.tensor_parallel_size

    def on_this_machine(self, gpus: int | None = None) -> RaySettings:
        """Returns the settings with threads for each process's share of this machine's CPUs.

        Args:
            gpus: how many GPUs this machine has; None if the replicas use none.

        Raises:
            ValueError: the replicas need more threads than there are CPUs, or more GPUs than there are.
        """
        cpus = num_cpus()
        threads = self.config.threads or max(1, cpus // (self.max_replicas * self.processes))
        self._check("thread", threads * self.processes, cpus, "CPUs")
        if gpus is not None:
            self._check("GPU", self.processes, gpus, "GPUs")
        return replace(self, config=replace(self.config, threads=threads))

    def _check(self, unit: str, each: int, there: int, what: str) -> None:
        if each * self.max_replicas > there:
            number = self.max_replicas
            raise ValueError(
                f"{number} replica{'s' * (number != 1)} of {each} {unit}{'s' * (each != 1)} need{'s' * (number == 1)}"
                f" {each * number} {what}, and this machine has {there}: use at most {there // each} replicas"
            )
