"""roseplay: an LLM inference engine that you can watch and steer.

The public names are imported on first use, so that ``import roseplay`` stays light and
``roseplay.core`` can be used without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Engine", "EngineConfig", "Knobs", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    __version__: str
    from roseplay.config import EngineConfig, Knobs, SamplingParams
    from roseplay.engine.client import Engine


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from roseplay.engine.client import Engine

        return Engine
    if name in ("EngineConfig", "Knobs", "SamplingParams"):
        import roseplay.config

        return getattr(roseplay.config, name)
    if name == "__version__":
        from roseplay.version import current_version

        return current_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
