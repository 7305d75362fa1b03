"""The models that can run as hardware that is not here (``EngineConfig.run_as``)."""

from __future__ import annotations

from roseplay.config import EngineConfig
from roseplay.engine.simulated import deployment, simulated_shape
from roseplay.model import shapes
from roseplay.models.entry import ModelEntry
from roseplay.sim.gpus import SimulationError
from roseplay.sim.memory import choose_num_blocks
from roseplay.sim.model_shape import ModelShape


def check_simulated(model: str, config: EngineConfig) -> ModelEntry:
    """Returns the entry of a model that ``config.run_as`` can simulate.

    Raises:
        ValueError: it is not found, cannot be simulated or does not fit; one line.
    """
    cost, _ = deployment(model, config)
    shape = cost.shape
    choose_num_blocks(cost, config, config.max_model_len or shape.max_len)
    return _entry(model, shape)


def simulated_models() -> list[ModelEntry]:
    """Returns the bundled models that can be simulated, the smallest first."""
    found = []
    for name in shapes.names():
        try:
            found.append(_entry(name, simulated_shape(name)))
        except SimulationError:  # a model with recurrent layers
            continue
    return sorted(found, key=lambda entry: entry.parameters or 0)


def _entry(model: str, shape: ModelShape) -> ModelEntry:
    return ModelEntry(
        name=shape.name,
        model=model,
        source="simulated",
        type=shape.weights,
        architecture=shape.architecture,
        parameters=shape.num_parameters,
        context=shape.max_len,
    )
