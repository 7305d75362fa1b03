"""Makes each arm's configuration and opens its engine."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

from roseplay.clock import CpuClock
from roseplay.config import GPU_KNOBS, SIMULATED_GPUS, EngineConfig, Knobs
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.engine.engine_like import EngineLike
from roseplay.extras.lab.experiment import ARM_CONFIG, Arm
from roseplay.extras.lab.load import PlayedLoad
from roseplay.extras.lab.measuring import PlayedArm
from roseplay.extras.lab.servers import Servers
from roseplay.extras.lab.simulated_arm import WITHOUT_EFFECT, SimulatedArm
from roseplay.extras.lab.types import ArmName, Plain
from roseplay.extras.servers.address import ServerAddress
from roseplay.extras.simulation.evidence import Evidence
from roseplay.extras.simulation.hardware import deployment

ArmConfig = EngineConfig | ServerAddress  # from which an arm's engine is opened
OpenArm = PlayedArm | SimulatedArm
OpenEngine = Callable[..., OpenArm]  # as ``open_engine``
_POOL = ("num_blocks", "kv_cache_memory")


@dataclass(frozen=True, slots=True)
class ClosedEngine:
    """The properties of an engine that was closed; a job takes one if there is no live engine."""

    model: Any
    config: EngineConfig
    info: EngineInfo
    tokenizer: Any
    memory: FreeMemory  # free memory after closing the engine
    alive: ClassVar[bool] = False
    knobs: ClassVar[Knobs] = Knobs()

    @classmethod
    def of(
        cls,
        model: Any,
        config: EngineConfig,
        arms: Mapping[ArmName, Arm] | None = None,
        open_with: OpenEngine | None = None,
    ) -> ClosedEngine:
        """Open an engine, read its properties, and close it.

        Args:
            arms: if these are all simulated, the one that is opened is arm A, so that no model is loaded.

        Raises:
            EngineStartError: the engine did not start; the message is one line.
            ValueError: one arm is simulated and the other is not.
        """
        opened = config if arms is None else _simulated_arm(config, arms)
        with closing((open_with or open_engine)(model, opened, Knobs(), threading.Event())) as arm:
            info, free = arm.info, arm.free_memory()
            held = info.weight_bytes + info.num_blocks * info.block_size * info.kv_bytes_per_token
            if free.device is None:
                memory = dataclasses.replace(free, host=free.host + held)
            else:
                memory = dataclasses.replace(free, device=free.device + held)
            return cls(model, config, info, arm.tokenizer, memory)

    def free_memory(self) -> FreeMemory:
        return self.memory


# The engine beside which an experiment runs; the arms' engines start from its configuration.
LiveEngine = EngineLike | ClosedEngine


def open_engine(model: Any, config: ArmConfig, knobs: Knobs, cancelled: threading.Event) -> OpenArm:
    """Returns an arm on a started engine, on a server, or on simulated hardware.

    Raises:
        EngineStartError: on failure, and once ``cancelled`` is set.
    """
    if isinstance(config, ServerAddress):
        return PlayedArm(model.open(config))
    if config.run_as is not None:
        return SimulatedArm(model, config, knobs)
    from roseplay.engine.client import Engine

    return PlayedArm(Engine(model, config=config, knobs=knobs, cancelled=cancelled))


def open_on_cpu_time(model: Any, config: ArmConfig, knobs: Knobs, cancelled: threading.Event) -> PlayedArm:
    """Returns an arm on a started engine in a thread of this process, whose times are this process's CPU time.

    Raises:
        EngineStartError: on failure, and once ``cancelled`` is set.
        ValueError: the engine is simulated or another server, or runs on a GPU.
    """
    if isinstance(config, ServerAddress) or config.run_as is not None:
        raise ValueError("CPU time is measured of engines on this machine's CPU")
    from roseplay.engine.client import Engine

    clock = CpuClock()
    engine = Engine(
        model, config=dataclasses.replace(config, worker="thread"), knobs=knobs, cancelled=cancelled, clock=clock
    )
    if engine.info.device != "cpu":
        engine.close()
        raise ValueError(f"CPU time says nothing about an engine on {engine.info.device}")
    clock.is_idle = lambda: not engine.num_unfinished
    return PlayedArm(engine)


def arm_configs(
    live: LiveEngine | Servers, arms: Mapping[ArmName, Arm], *, varied: bool = False
) -> dict[ArmName, ArmConfig]:
    """Returns each arm's config: the live engine's with the arm's changes, or its server's address.

    Args:
        varied: whether the experiment also varies a knob.

    Raises:
        ValueError: settings exclude each other, or the device does not support them.
    """
    if isinstance(live, Servers):
        return dict(live.of_arms(arms, varied=varied))
    configs: dict[ArmName, EngineConfig] = {}
    for name, arm in arms.items():
        changes: dict[str, Any] = dict(arm.config)
        if any(changes.get(setting) is not None for setting in _POOL):  # overrides the sizing of the live engine's pool
            changes = {**dict.fromkeys(_POOL), **changes}
        changes["worker"] = "process" if isinstance(live.model, str) else "thread"
        if "url" in changes:
            raise ValueError(
                f"arm {name}: this lab starts its own engines; to compare servers, name them when starting the page or lab"
            )
        config = configs[name] = _changed(live.config, name, changes)
        if config.run_as is not None:
            _check_simulated(name, arm, live.config)
        elif live.config.run_as is not None:
            raise ValueError(
                f"arm {name}: this engine is simulated, so the lab cannot measure this machine: name a GPU"
            )
        device = live.info.device if config.device in ("auto", live.config.device) else config.device
        on_gpu = device.startswith("cuda") or config.run_as is not None
        for knob in GPU_KNOBS:
            if not on_gpu and getattr(arm.knobs, knob) != getattr(Knobs(), knob):
                raise ValueError(f"arm {name}: {knob} needs a CUDA device; this engine runs on {device}")
    _check_one_kind(configs)
    return {**configs}


def evidence(live: LiveEngine | Servers, configs: Mapping[ArmName, ArmConfig]) -> dict[ArmName, Evidence]:
    """Returns what stands behind each simulated arm's durations. Raises ``ValueError`` if one cannot be simulated."""
    by_arm = {}
    for name, config in configs.items():
        if isinstance(config, EngineConfig) and config.run_as is not None:
            try:
                by_arm[name] = deployment(live.model, config)[1]
            except ValueError as error:
                raise ValueError(f"arm {name}: {error}") from None
    return by_arm


def _changed(config: EngineConfig, arm: str, changes: Mapping[str, Any]) -> EngineConfig:
    """Returns the config with an arm's changes; raises ``ValueError``."""
    try:
        return dataclasses.replace(config, **changes)
    except ValueError as error:
        raise ValueError(f"arm {arm}: {error}") from None


def _check_one_kind(configs: Mapping[ArmName, EngineConfig]) -> None:
    """Raises ``ValueError`` if one arm is simulated and the other is not: their times cannot be compared."""
    simulated = {name for name, config in configs.items() if config.run_as is not None}
    if simulated and len(simulated) < len(configs):
        (one, *_), (other, *_) = sorted(simulated), sorted(set(configs) - simulated)
        raise ValueError(
            f"arm {one} is simulated and arm {other} would be measured on this machine: give both a GPU to run as, or none"
        )


def _simulated_arm(config: EngineConfig, arms: Mapping[ArmName, Arm]) -> EngineConfig:
    """Returns the config of arm A if all arms are simulated, else ``config``; raises ``ValueError`` if only one is."""
    configs = {
        name: _changed(config, name, {key: value for key, value in arm.config.items() if key != "url"})
        for name, arm in arms.items()
    }
    _check_one_kind(configs)
    return configs["A"] if configs["A"].run_as is not None else config


def _check_simulated(name: str, arm: Arm, live: EngineConfig) -> None:
    """Raises ``ValueError`` if an arm sets something that simulated hardware cannot have, or that has no effect there.

    An arm may come from a page's visitor, who may not read files of this machine: a calibration file must be the engine's.
    """
    run_as = arm.config.get("run_as", live.run_as)
    if run_as not in (*SIMULATED_GPUS, live.run_as):
        raise ValueError(f"arm {name}: start with --run-as {run_as} to use this calibration file")
    unused = [key for key in WITHOUT_EFFECT if key in arm.config and arm.config[key] != getattr(live, key)]
    unused += ["batched_append"] if arm.knobs.batched_append != Knobs().batched_append else []
    if unused:
        raise ValueError(f"arm {name}: {', '.join(unused)} has no effect on simulated hardware: leave it out")


def sized(config: EngineConfig, live: EngineInfo, load: PlayedLoad, at_once: int | None = None) -> EngineConfig:
    """Returns ``config`` with a pool for the load, or for ``at_once`` of its longest requests, unless it has a size.

    A simulated engine keeps the pool that its GPU's memory leaves: it takes no memory here.
    """
    if config.run_as is not None or any(getattr(config, setting) is not None for setting in _POOL):
        return config
    blocks = [
        -(-(tokens + arrival.params.max_new_tokens) // config.block_size) for arrival, tokens in zip(*load, strict=True)
    ]
    needed = sum(sorted(blocks, reverse=True)[:at_once])
    return dataclasses.replace(config, num_blocks=min(live.num_blocks, needed + 2))


def room(configs: Mapping[ArmName, ArmConfig], live: EngineInfo) -> int:
    """Returns the most tokens, prompt and answer together, that a request may have in either arm."""
    ours = [config for config in configs.values() if isinstance(config, EngineConfig)]
    longest = [min(config.max_model_len or live.max_model_len, live.max_model_len) for config in ours]
    pools = [(config.num_blocks - 1) * config.block_size for config in ours if config.num_blocks]
    return min([live.max_model_len, *longest, *pools])


def settings(config: ArmConfig, info: EngineInfo) -> Plain:
    """Returns the effective values of the engine settings that an arm may set; for a server, its URL."""
    if isinstance(config, ServerAddress):
        return {"url": config.url}
    own = WITHOUT_EFFECT if config.run_as is not None else ()
    return {name: getattr(config if name in own else info, name, getattr(config, name)) for name in ARM_CONFIG}
