"""The rows of ``roseplay bench gpu``, and the machine that they are measured on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseplay.config import Knobs

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

TINY = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The device that rows are measured on, with its ceilings, measured in the same run.

    Attributes:
        tiny: use a small model and few tokens, to see that everything runs.
        folder: holds the small model.
        bandwidth: bytes read and written a second by a copy.
        matmul_flops: operations a second of a large bfloat16 product.
    """

    device: str
    tiny: bool
    folder: Path
    bandwidth: float
    matmul_flops: float
    repeats: int = 3

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def model(self, shape: str) -> str:
        """Returns the shape, or the path of the small model in its place."""
        if not self.tiny:
            return shape
        (self.folder / "config.json").write_text(json.dumps(TINY))
        return str(self.folder)

    def settings(self, dtype: str) -> dict[str, Any]:
        """Returns fields of ``EngineConfig`` for an engine to measure."""
        tiny = {"attention": "reference", "worker": "thread", "threads": 1, "dtype": "float32", "num_blocks": 512}
        full = {"worker": "process", "dtype": dtype}
        return {"device": self.device, "random_weights": True, **(tiny if self.tiny else full)}

    def engine(
        self,
        shape: str,
        *,
        dtype: str = "bfloat16",
        max_model_len: int = 2048,
        max_batch_size: int = 256,
        **settings: Any,
    ) -> Engine:
        from roseplay.engine.client import Engine

        given = {**self.settings(dtype), "max_model_len": min(max_model_len, self.size(1 << 30, 512)), **settings}
        return Engine(self.model(shape), knobs=Knobs(max_batch_size=max_batch_size), **given)


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        measure: returns its figures, among them ``figure``, a summary, and ``share``, of the GPU's upper limit.
        goal: the share that it should reach, if any.
        published: shares that others have published, as text.
    """

    name: str
    measure: Callable[[Machine, Any], dict[str, Any]]
    goal: float | None = None
    published: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that share an engine, see ``Machine.engine``. Without a shape, rows make what they need themselves."""

    rows: list[Row]
    shape: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
