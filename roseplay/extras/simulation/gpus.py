"""The GPUs that can be simulated: memory, bandwidth and rates, each with its source (``gpus.json``).

Rates are dense: several public tables list those of sparse matrices, which are twice as high. The link's rate is in one
direction.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from roseplay.extras.simulation.limits import GiB, Name, Rate

_FILE = Path(__file__).with_name("gpus.json")


class SimulationError(ValueError):
    """What cannot be simulated, and why, in one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    name: Name
    title: Name
    memory_gib: GiB  # memory in GiB, as drivers report it
    bandwidth_tb_s: Rate  # bandwidth of its memory, 10^12 bytes/s
    bf16_tflops: Rate  # dense matrix rates, 10^12 operations/s; ``None`` where it has none, or none is known
    fp8_tflops: Rate | None = None
    fp4_tflops: Rate | None = None
    # Bandwidth to the other GPUs of a server in one direction, 10^9 bytes/s; ``None`` if not known.
    link_gb_s: Rate | None = None
    cpu: bool = False  # whether it is a CPU: its steps neither overlap with the host's work nor are padded
    source: Name  # where these figures come from

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    def flops(self, weights: str) -> float:
        """Returns the matrix rate, in operations/s, for weights in this format.

        Weights in fp4 are taken to be multiplied at the rate of fp8, since there are no published points from which the
        achieved share of the fp4 rate could be derived. All other formats are multiplied in bf16.
        """
        rate = self.fp8_tflops if weights in ("fp8", "fp4") else None
        return (rate or self.bf16_tflops) * 1e12


@cache
def gpus() -> dict[str, GPU]:
    """Returns all known GPUs by name."""
    entries = [GPU(**row) for row in json.loads(_FILE.read_text("utf-8"))]
    return {gpu.name: gpu for gpu in entries}


def find_gpu(name: str) -> GPU:
    """Returns a GPU by its name, in any case; raises ``SimulationError`` with the known names."""
    wanted = name.strip().lower()
    if (gpu := gpus().get(wanted)) is None:
        near = difflib.get_close_matches(wanted, gpus(), 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SimulationError(f"no GPU is called {name!r}: {meant}The known ones are {', '.join(gpus())}")
    return gpu
