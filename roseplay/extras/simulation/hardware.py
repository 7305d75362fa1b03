"""What the core asks of simulated hardware (``EngineConfig.run_as``): an engine's parts, and the models that can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roseplay.clock import Clock
from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.hardware import MeasuredLoad
from roseplay.extras.simulation.calibrated import find_hardware
from roseplay.extras.simulation.evidence import Evidence, cost_model
from roseplay.extras.simulation.gpus import SimulationError
from roseplay.extras.simulation.memory import choose_num_blocks
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.origins import origins
from roseplay.extras.simulation.published import published_of
from roseplay.own_models import EMBEDDED, SMOLLM2

if TYPE_CHECKING:  # a process beside the worker does without them
    from roseplay.extras.simulation.cost import CostModel
    from roseplay.extras.simulation.runner import SimulatedRunner
    from roseplay.models.entry import ModelEntry

# The text of all answers, which no model wrote.
CANNED_TEXT = (
    "This answer is simulated: no model has read your question. A cost model says how long each step would take on the"
    " hardware that was chosen, and the real scheduler, prefix cache and block pool serve the requests with it. So the"
    " times are estimates, but the order of requests, the sharing of blocks, the waiting and the preemptions are what"
    " this engine would do. Watch the gaps between the words while a long prompt arrives, change the prefill budget, and"
    " send a burst. The text goes on from the beginning until the answer has as many tokens as were asked for.\n\n"
)


class SimulatedHardware:
    """Simulates GPUs, see ``engine.hardware.Hardware`` and ``models.entry.HardwareModels``."""

    def load_runner(self, model: Any, config: EngineConfig, reporter: Reporter, clock: Clock) -> SimulatedRunner:
        """Returns a runner that only waits for as long as the model's steps would take."""
        reporter.begin("libraries")
        runner = simulated_runner(model, config, clock, tokenizer_of_simulated(model, config))
        reporter.begin("warm-up")
        reporter.end()
        return runner

    def tokenizer(self, model: Any, config: EngineConfig) -> Any:
        return tokenizer_of_simulated(model, config)

    def origins(self, model: Any, config: EngineConfig, num_blocks: int) -> dict[str, object]:
        return origins(*deployment(model, config), config, num_blocks)

    def measured_loads(self, info: EngineInfo, config: EngineConfig) -> list[MeasuredLoad]:
        weights = next((choice.chosen for choice in info.choices if choice.part == "weights"), "")
        return [
            MeasuredLoad(
                point.engine, point.prompt, point.answer, point.streams, point.ttft_s, point.measured == "saturated"
            )
            for point in published_of(config.run_as or "", info.model, weights, config.tensor_parallel_size)
            if point.measured in ("tpot", "saturated") and point.ttft_s is not None
        ]

    def check(self, model: str, config: EngineConfig) -> ModelEntry:
        cost, _ = deployment(model, config)
        choose_num_blocks(cost, config, config.max_model_len or cost.shape.max_len)
        return _entry(model, cost.shape)

    def models(self) -> list[ModelEntry]:
        from roseplay.model import shapes

        entries = []
        for name in shapes.names():
            try:
                entries.append(_entry(name, simulated_shape(name)))
            except SimulationError:  # a model with recurrent layers
                continue
        return sorted(entries, key=lambda entry: entry.parameters or 0)


HARDWARE = SimulatedHardware()


def simulated_runner(model: Any, config: EngineConfig, clock: Clock, tokenizer: Any) -> SimulatedRunner:
    """Returns the runner of ``config.run_as``; ``tokenizer`` encodes the answers. Raises ``EngineStartError``."""
    from roseplay.extras.simulation.runner import SimulatedRunner

    try:
        cost, evidence = deployment(model, config)
        text = tokenizer.encode(CANNED_TEXT, add_special_tokens=False)
        return SimulatedRunner(cost, evidence, config, clock, text)
    except SimulationError as error:
        raise EngineStartError(str(error)) from None


def deployment(model: Any, config: EngineConfig) -> tuple[CostModel, Evidence]:
    """Returns the cost model of a simulated engine, and what stands behind it.

    Raises:
        SimulationError: the model is not found or cannot be simulated; one line.
    """
    assert config.run_as is not None
    gpu, calibration = find_hardware(config.run_as)
    return cost_model(simulated_shape(model), gpu, config.tensor_parallel_size, calibration)


def simulated_shape(model: Any, weights: str | None = None, kv: str | None = None) -> ModelShape:
    """Returns the shape of a model in memory, or of the one with this name; raises ``SimulationError``.

    Args:
        weights, kv: see ``ModelShape.of_config``.
    """
    if isinstance(model, str):
        return find_shape(_directory(model), weights, kv)
    return ModelShape.of_config(model.config.to_dict(), name=type(model).__name__, weights=weights, kv=kv)


def tokenizer_of_simulated(model: Any, config: EngineConfig) -> Any:
    """Returns the model's own tokenizer or, where only its config is at hand, that of the embedded model."""
    from roseplay.model.errors import UnsupportedModelError
    from roseplay.model.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(model, config)
    except UnsupportedModelError:
        tokenizer = None
    return tokenizer if tokenizer is not None else load_tokenizer(EMBEDDED, config)


def _directory(model: str) -> str:
    """Returns where the config of one of our own models is; any other name unchanged."""
    from roseplay.model.source import embedded_model

    if model == EMBEDDED:
        return str(embedded_model())
    return "smollm-135m" if model == SMOLLM2 else model  # SmolLM2-135M has the sizes of the first version


def _entry(model: str, shape: ModelShape) -> ModelEntry:
    from roseplay.models.entry import ModelEntry

    return ModelEntry(
        name=shape.name,
        model=model,
        source="simulated",
        type=shape.weights,
        architecture=shape.architecture,
        parameters=shape.num_parameters,
        context=shape.max_len,
    )
