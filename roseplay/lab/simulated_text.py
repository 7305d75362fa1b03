"""What a result of simulated arms says about itself: the hardware, how far its times can be trusted, and where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.formats.text import listed
from roseplay.sim.evidence import SATURATED, TTFT_UNDER_LOAD

CPU_TIME = "Times are CPU time of the engine's process, on one core: what other programs do meanwhile hardly counts."
Document = Mapping[str, Any]
Run = Mapping[str, Any]


def is_simulated(document: Document) -> bool:
    """Whether the arms of a result were simulated; a result has arms of one kind."""
    return "simulated" in document["arms"]["A"]


def is_once(document: Document) -> bool:
    """Whether each arm or value was simulated once, as a repeat would give the same figures."""
    return document["repeats"] == 1 and is_simulated(document)


def is_exact(runs: Sequence[Run]) -> bool:
    """Whether these runs, of one arm or value, were simulated, so that a repeat would give the same figures."""
    return all("saturated" in run for run in runs)


def simulated_sentences(document: Document, saturated: Sequence[str]) -> list[str]:
    """Returns the sentences that every result of simulated arms, or in CPU time, ends with; none for other results.

    Args:
        saturated: where runs were saturated, in words: ``in B``, ``at 8 req/s``.
    """
    if document.get("cpu_time"):
        return [CPU_TIME]
    if not is_simulated(document):
        return []
    repeat = "" if document["repeats"] > 1 else " A repeat would give the same figures."
    hardware = {name: arm["simulated"]["evidence"] for name, arm in document["arms"].items()}
    same = len(set(hardware.values())) == 1
    named = hardware["A"] if same else "; ".join(f"{name}: {text}" for name, text in hardware.items())
    found = [f"Simulated: {named}. {TTFT_UNDER_LOAD}.{repeat}"]
    if saturated:
        found.append(
            f"{SATURATED.capitalize()}: {listed(saturated)}, requests arrive faster than they are answered. These"
            " figures depend on the length of the run and have no error bound."
        )
    return found
