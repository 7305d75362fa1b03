"""Makes an engine's parts where it runs as hardware that is not here (``EngineConfig.run_as``)."""

from __future__ import annotations

from typing import Any

from roseplay.clock import Clock
from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.engine.errors import EngineStartError
from roseplay.engine.runner import Runner
from roseplay.own_models import EMBEDDED, SMOLLM2

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
    from roseplay.sim.evidence import cost_model
    from roseplay.sim.gpus import SimulationError, find_gpu
    from roseplay.sim.model_shape import ModelShape
    from roseplay.sim.models import find_shape
    from roseplay.sim.runner import SimulatedRunner

    assert config.run_as is not None
    reporter.begin("libraries")
    try:
        if isinstance(model, str):
            shape = find_shape(_directory(model))
        else:
            shape = ModelShape.of_config(model.config.to_dict(), name=type(model).__name__)
        cost, evidence = cost_model(shape, find_gpu(config.run_as), config.tensor_parallel_size)
        tokenizer = tokenizer_of_simulated(model, config)
        text = tokenizer.encode(CANNED_TEXT, add_special_tokens=False)
        runner = SimulatedRunner(cost, evidence, config, clock, text)
    except SimulationError as error:
        raise EngineStartError(str(error)) from None
    reporter.begin("warm-up")
    reporter.end()
    return runner


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
