"""Makes an engine's parts where it runs as hardware that is not here (``EngineConfig.run_as``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from roseplay.clock import Clock
from roseplay.config import EngineConfig
from roseplay.core.info import EngineInfo
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.runner import Runner
from roseplay.own_models import EMBEDDED, SMOLLM2

if TYPE_CHECKING:
    from roseplay.sim.cost import CostModel
    from roseplay.sim.evidence import Evidence
    from roseplay.sim.model_shape import ModelShape
    from roseplay.sim.runner import SimulatedRunner

# The text of all answers, which no model wrote.
CANNED_TEXT = (
    "This answer is simulated: no model has read your question. A cost model says how long each step would take on the"
    " hardware that was chosen, and the real scheduler, prefix cache and block pool serve the requests with it. So the"
    " times are estimates, but the order of requests, the sharing of blocks, the waiting and the preemptions are what"
    " this engine would do. Watch the gaps between the words while a long prompt arrives, change the prefill budget, and"
    " send a burst. The text goes on from the beginning until the answer has as many tokens as were asked for.\n\n"
)


def load_simulated_runner(model: Any, config: EngineConfig, reporter: Reporter, clock: Clock) -> Runner:
    """Returns a runner that only waits for as long as the model's steps would take.

    Raises:
        EngineStartError: the model is not found, cannot be simulated or does not fit; one line.
    """
    reporter.begin("libraries")
    runner = simulated_runner(model, config, clock, tokenizer_of_simulated(model, config))
    reporter.begin("warm-up")
    reporter.end()
    return runner


def simulated_runner(model: Any, config: EngineConfig, clock: Clock, tokenizer: Any) -> SimulatedRunner:
    """Returns the runner of ``config.run_as``; ``tokenizer`` encodes the answers. Raises ``EngineStartError``."""
    from roseplay.sim.gpus import SimulationError
    from roseplay.sim.runner import SimulatedRunner

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
    from roseplay.sim.calibrated import find_hardware
    from roseplay.sim.evidence import cost_model

    assert config.run_as is not None
    gpu, own = find_hardware(config.run_as)
    return cost_model(simulated_shape(model), gpu, config.tensor_parallel_size, own)


def origins_of(model: Any, config: EngineConfig, num_blocks: int) -> dict[str, Any]:
    """Returns where every number of a simulated engine comes from, see ``sim.origins``."""
    from roseplay.sim.origins import origins

    return origins(*deployment(model, config), config, num_blocks)


class MeasuredLoad(NamedTuple):
    """A published measurement of ``clients`` that each sent one request after the other; tokens, and a mean TTFT."""

    server: str
    prompt: int
    answer: int
    clients: int
    ttft_s: float
    saturated: bool


def measured_loads(info: EngineInfo, config: EngineConfig) -> list[MeasuredLoad]:
    """Returns the published measurements of a simulated engine's model on its hardware."""
    from roseplay.sim.published import published_of

    weights = next((choice.chosen for choice in info.choices if choice.part == "weights"), "")
    return [
        MeasuredLoad(
            point.engine, point.prompt, point.answer, point.streams, point.ttft_s, point.measured == "saturated"
        )
        for point in published_of(config.run_as or "", info.model, weights, config.tensor_parallel_size)
        if point.measured in ("tpot", "saturated") and point.ttft_s is not None
    ]


def waits_grow(ttft_s: Sequence[float]) -> bool:
    """Returns whether times to first token, in order of arrival, grow during a run."""
    import numpy as np

    from roseplay.sim.summary import grows

    return grows(np.asarray(ttft_s))


def simulated_shape(model: Any, weights: str | None = None, kv: str | None = None) -> ModelShape:
    """Returns the shape of a model in memory, or of the one with this name; raises ``SimulationError``.

    Args:
        weights, kv: see ``ModelShape.of_config``.
    """
    from roseplay.sim.model_shape import ModelShape
    from roseplay.sim.models import find_shape

    if isinstance(model, str):
        return find_shape(_directory(model), weights, kv)
    return ModelShape.of_config(model.config.to_dict(), name=type(model).__name__, weights=weights, kv=kv)


def tokenizer_of_simulated(model: Any, config: EngineConfig) -> Any:
    """Returns the model's own tokenizer or, where only its config is at hand, that of the embedded model."""
    from roseplay.model.errors import UnsupportedModelError
    from roseplay.model.tokenizer import load_tokenizer

    try:
        own = load_tokenizer(model, config)
    except UnsupportedModelError:
        own = None
    return own if own is not None else load_tokenizer(EMBEDDED, config)


def _directory(model: str) -> str:
    """Returns where the config of one of our own models is; any other name unchanged."""
    from roseplay.model.source import embedded_model

    if model == EMBEDDED:
        return str(embedded_model())
    return "smollm-135m" if model == SMOLLM2 else model  # SmolLM2-135M has the sizes of the first version
