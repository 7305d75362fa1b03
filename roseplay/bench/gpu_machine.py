"""The parts of ``roseplay bench gpu``, their rows, and the machine that they are measured on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.bench.runs import error_line
from roseplay.config import EngineConfig, Knobs

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

Figures = dict[str, Any]

TINY = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The device that rows are measured on, with its ceilings, measured in the same run.

    Attributes:
        tiny: use a small model and few tokens, to see that everything runs.
        folder: holds small models.
        bandwidth: bytes read and written a second by a copy.
        matmul_flops: operations a second of a large bfloat16 product.
    """

    device: str
    tiny: bool
    folder: Path
    bandwidth: float = 1.0
    matmul_flops: float = 1.0
    repeats: int = 3

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def model(self, shape: str) -> str:
        """Returns the shape, or the path of the small model in its place."""
        return self.small_model(TINY) if self.tiny else shape

    def small_model(self, config: dict[str, Any]) -> str:
        """Write a model's config; returns its folder."""
        folder = self.folder / str(config["model_type"])
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    def settings(self, dtype: str) -> dict[str, Any]:
        """Returns fields of ``EngineConfig`` for an engine to measure."""
        tiny = {"attention": "reference", "worker": "thread", "threads": 1, "dtype": "float32", "num_blocks": 512}
        full = {"worker": "process", "dtype": dtype}
        return {"device": self.device, "random_weights": True, **(tiny if self.tiny else full)}

    def config(self, *, dtype: str = "bfloat16", max_model_len: int = 2048, **settings: Any) -> EngineConfig:
        limited = {"max_model_len": min(max_model_len, self.size(1 << 30, 512))}
        return EngineConfig(**{**self.settings(dtype), **limited, **settings})

    def engine(self, shape: str, *, max_batch_size: int = 256, **settings: Any) -> Engine:
        """Returns a started engine; ``settings`` are those of ``config``."""
        from roseplay.engine.client import Engine

        config = self.config(**settings)
        return Engine(self.model(shape), config=config, knobs=Knobs(max_batch_size=max_batch_size))


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        measure: returns its figures, among them ``figure``, a summary, and ``share``, of the GPU's upper limit. A row
            that finds a fault says so as ``wrong``.
        goal: the share that it should reach, if any.
        published: shares that others have published, as text.
    """

    name: str
    measure: Callable[[Machine, Any], Figures]
    goal: float | None = None
    published: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that share an engine, see ``Machine.engine``. Without a shape, rows make what they need themselves."""

    rows: list[Row]
    shape: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Groups that are measured in one process, which is ended after ``limit_s`` seconds."""

    name: str
    limit_s: float
    groups: list[Group]


def measure(part: Part, machine: Machine) -> Iterator[tuple[str, Figures]]:
    """Yields the name and the figures of each row of a part, or the reason why there are none."""
    for group in part.groups:
        for row, found in _measure_group(group, machine):
            yield row.name, found


def _measure_group(group: Group, machine: Machine) -> Iterator[tuple[Row, Figures]]:
    about: Figures = {}
    with contextlib.ExitStack() as stack:
        engine = None
        if group.shape is not None:
            try:
                engine = stack.enter_context(machine.engine(group.shape, **group.settings))
            except Exception as error:
                yield from ((row, error_of(error)) for row in group.rows)
                return
            info = engine.info
            about = {"attention": info.attention, "graphs": info.cuda_graphs, "no_graphs": info.no_cuda_graphs}
        for row in group.rows:
            yield row, {**about, **_judged(row, attempt(partial(row.measure, machine, engine)))}


def _judged(row: Row, found: Figures) -> Figures:
    """Returns the figures with the row's goal and with published ones."""
    if row.goal is not None and "share" in found:
        found |= {"goal": row.goal, "reached": found["share"] >= row.goal}
    return {**found, "published": row.published} if row.published else found


def attempt(measure: Callable[[], Figures]) -> Figures:
    """Returns the figures measured, or the error, and the seconds taken."""
    began = time.monotonic()
    try:
        found = measure()
    except Exception as error:
        found = error_of(error)
    return {**found, "seconds": time.monotonic() - began}


def error_of(error: Exception) -> Figures:
    """Returns an error's first line, in the place of figures."""
    return {"error": error_line(error)}
