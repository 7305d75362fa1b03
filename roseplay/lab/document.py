"""The result of an experiment as a self-contained JSON document: made, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roseplay.formats.json_schema import check
from roseplay.formats.json_text import strict_json
from roseplay.formats.text import setting_text
from roseplay.lab.own_traffic import OWN
from roseplay.lab.schema import DOCUMENT
from roseplay.lab.spec import ARMS, find_scenario
from roseplay.lab.summary import summary

VERSION = 1
MAX_BYTES = 32 * 2**20


def label(arm: Mapping[str, Any], differs: list[str]) -> str:
    """Returns an arm in a few words: the settings in which it differs from the other."""
    values = {**arm["knobs"], **arm["config"]}
    return (
        ", ".join(f"{name.replace('_', ' ')} {setting_text(values[name], 'unlimited')}" for name in differs)
        or "the same"
    )


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Returns the names of the knobs, then of the engine settings, in which two arms differ."""
    return [name for part in ("knobs", "config") for name in a[part] if a[part][name] != b[part][name]]


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document of runs completed by what follows from them: how the arms differ, and the summary."""
    a, b = (document["arms"][arm] for arm in ARMS)
    differs = differing(a, b)
    for arm in (a, b):
        arm["differs"], arm["label"] = differs, label(arm, differs)
    document["summary"] = summary(document)
    return document


def read_document(text: bytes) -> Any:
    """Returns the JSON of a file that may hold a result; raises ``ValueError`` if it is too large, or no JSON."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES // 2**20} MiB: that is no result of the lab")
    try:
        return strict_json(text)
    except ValueError:
        raise ValueError("the file is not JSON: open a result that the lab exported") from None


def checked_document(document: Any) -> dict[str, Any]:
    """Returns a comparison of A and B with its summary; raises ``ValueError`` as in a file."""
    check_document(document)
    return {**document, "summary": summary(document)}


def experiment_of(document: Any) -> dict[str, Any]:
    """Returns the experiment that produced a result, as ``parse_experiment`` reads it, so that it can be repeated.

    It includes the engine settings in which the arms differ and those that the scenario sets. Other settings, which
    both arms had in common, come from the engine that it is repeated with.

    Raises:
        ValueError: the document is not a result of the lab.
    """
    check_document(document)
    arms, traffic = document["arms"], document.get("traffic")
    scenario = OWN if traffic and document["scenario"] == OWN.name else find_scenario(document["scenario"])
    a, b = (arms[arm]["config"] for arm in ARMS)
    own = {*scenario.config, *scenario.config_before, *scenario.config_after}
    kept = [name for name in a if name in own or a[name] != b.get(name)]
    body = {name: document[name] for name in ("scenario", "seed", "repeats", "params", "limits", "name")}
    if "max_spread_pct" in document:
        body["max_spread_pct"] = document["max_spread_pct"]
    if traffic:
        body = {**body, "params": {}, "traffic": traffic}
    for arm in ARMS:
        config = {name: arms[arm]["config"][name] for name in kept if name in arms[arm]["config"]}
        if config.get("kv_cache_memory") is not None:
            config.pop("num_blocks", None)  # was derived from it
        body[arm.lower()] = {"knobs": arms[arm]["knobs"], "config": config}
    return body


def check_document(document: Any) -> None:
    """Check the structure of a document; raises ``ValueError`` that names what is missing or wrong."""
    if not isinstance(document, Mapping) or document.get("roseplay_lab") != VERSION:
        raise ValueError(f"this is no result of the lab, version {VERSION}: open one that the lab exported")
    check(document, DOCUMENT, "the result")
    for arm in ARMS:
        if not any(run["arm"] == arm for run in document["runs"]):
            raise ValueError(f"the result has no run of arm {arm}")
