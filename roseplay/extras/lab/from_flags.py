"""Turns the flags of ``roseplay lab`` into an experiment and the engine's settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roseplay.arguments import given_fields
from roseplay.config import SETTINGS, EngineConfig, Knobs
from roseplay.core.info import EngineInfo
from roseplay.extras.lab.document import Traffic, traffic_rows
from roseplay.extras.lab.experiment import ARM_CONFIG, SIDE
from roseplay.extras.lab.flags import NOT_FLAGS, VARIED
from roseplay.extras.lab.order import DEFAULT_LIMITS, find_scenario, parse_order
from roseplay.extras.lab.results import experiment_of
from roseplay.extras.lab.types import ARMS, ArmName
from roseplay.extras.servers.address import server_addresses
from roseplay.formats.invalid import validated
from roseplay.formats.json_text import strict_json
from roseplay.settings import Choice, settings_of
from roseplay.traffic.own import MAX_BYTES, parse_traffic
from roseplay.traffic.own_traffic import MAX_NAME, OWN, OwnTraffic
from roseplay.traffic.scenario import PARAM_LIMITS, Params, Scenario, Settings
from roseplay.traffic.scenarios import SCENARIOS

_WORDS = {"on": True, "true": True, "off": False, "false": False, "none": None, "null": None, "unlimited": None}
# Flags for fields within the parts of an order: their parts, and their names there.
_PLACES = {
    **{name: ("params", name) for name in (*PARAM_LIMITS, "prompt")},
    **{name: ("limits", name) for name in DEFAULT_LIMITS},
    "points": ("sweep", "points"),
    "seconds": ("sweep", "seconds"),
    "itl_p99": ("find", "itl_p99_ms"),
    "ttft_p95": ("find", "ttft_p95_ms"),
    "from": ("range", "from"),
    "to": ("range", "to"),
}


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Returns the engine settings from which both arms start; raises ``ValueError`` for a bad value."""
    fields = given_fields(EngineConfig, vars(options))
    settings = {name: value for name, value in fields.items() if name not in NOT_FLAGS}  # --seed is the experiment's
    if settings and options.url is not None:
        flags = ", ".join("--" + name.replace("_", "-") for name in settings)
        raise ValueError(f"--url measures a server that runs already: leave out {flags}")
    return EngineConfig(worker="process", **settings)


def experiment_body(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the experiment as ``parse_order`` reads it, but for its arms: the spec file, overridden by the flags.

    Raises:
        ValueError: the file or a flag is invalid; the message is one sentence for the user.
    """
    body = {} if options.spec is None else _read_spec(Path(options.spec))
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("params", "limits", "sweep", "find", "range")}
    for flag, (part, name) in _PLACES.items():
        if (value := getattr(options, flag)) is not None:
            parts[part][name] = value
    named = {name: getattr(options, name) for name in ("scenario", "seed", "repeats", "length")}
    named["max_spread_pct"] = options.max_spread
    body |= {name: value for name, value in named.items() if value is not None}
    body |= _varied(options, parts)
    if options.traffic is not None:
        seed, rate = parse_order({"seed": body.get("seed")}).seed, parts["params"].pop("rate_per_s", None)
        body |= {"traffic": _read_traffic(Path(options.traffic), rate, seed), "params": {}}
    if body.get("scenario") is None and body.get("traffic") is None:
        raise ValueError("name a scenario, or a file with --spec (--help lists the scenarios)")
    parse_order(body)  # a file may contain anything; the code below relies on the types
    for part in ("params", "limits"):
        if parts[part]:
            body[part] = {**(body.get(part) or {}), **parts[part]}
    return body


def with_arms(body: Mapping[str, Any], options: argparse.Namespace, info: EngineInfo | None = None) -> dict[str, Any]:
    """Returns the experiment with its arms; without the knobs of a scenario that a server with ``info`` cannot change."""
    body, servers = dict(body), [address.url for address in server_addresses(vars(options))]
    if len(servers) > 1 and ("sweep" in body or "find" in body):
        raise ValueError("a sweep or a search measures one server: leave out --url-b")
    only_a = "find" in body or ("sweep" in body and not options.b and body.get("b") is None)
    for number, arm in enumerate(ARMS[: 1 if only_a else 2]):
        changes = _arm_changes(getattr(options, arm.lower()))
        if any(changes.values()):
            body[arm.lower()] = _changed_arm(body, arm, changes, info)
        if servers:
            body[arm.lower()] = _at_server(body, arm, servers[number % len(servers)], info, alone=len(servers) == 1)
    return body


def _varied(options: argparse.Namespace, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns ``sweep`` or ``find`` as the lab reads it, if requested; raises ``ValueError`` for incompatible flags."""
    modes = [kind for kind in ("sweep", "find") if getattr(options, kind) is not None]
    if len(modes) == 2:
        raise ValueError("use either --sweep or --find")
    kinds = {"sweep": ["sweep"], "find": ["find"], "range": ["sweep", "find"]}
    for flag, (part, name) in _PLACES.items():
        if part in kinds and name in parts[part] and not {*kinds[part]} & {*modes}:
            raise ValueError(f"--{flag.replace('_', '-')} is for {' or '.join(f'--{kind}' for kind in kinds[part])}")
    if not modes:
        return {}
    (kind,) = modes
    if options.b and kind == "find":
        raise ValueError("--b is for a comparison or a sweep of A and B: leave it out with --find")
    return {kind: {**parts[kind], **parts["range"], "setting": VARIED[getattr(options, kind)]}}


def _at_server(body: Mapping[str, Any], arm: ArmName, url: str, info: EngineInfo | None, *, alone: bool) -> Settings:
    """Returns an arm for a server, with the scenario's knobs unless two servers are compared."""
    settings = body.get(arm.lower()) or {}
    if not settings and alone and "sweep" not in body and "find" not in body and body.get("scenario") in SCENARIOS:
        settings = {"knobs": _of_scenario(find_scenario(body["scenario"]), arm, info)["knobs"]}
    return {"knobs": settings.get("knobs") or {}, "config": {**(settings.get("config") or {}), "url": url}}


def _read_traffic(path: Path, rate_per_s: float | None, seed: int) -> Traffic:
    """Returns a file as an experiment's ``traffic``; raises ``ValueError``, which says what is wrong with it."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    validated(Params, {"rate_per_s": rate_per_s})
    try:
        requests = parse_traffic(content, rate_per_s=rate_per_s, seed=seed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return traffic_rows(OwnTraffic(path.name[:MAX_NAME], tuple(requests)))


def _read_spec(path: Path) -> dict[str, Any]:
    """Read an experiment, or a result to repeat, from a file; raises ``ValueError`` if it is neither."""
    content = strict_json(path.read_bytes(), str(path))
    if not isinstance(content, dict):
        raise ValueError(f'{path} is not an experiment: write a JSON object, such as {{"scenario": "token-budget"}}')
    return experiment_of(content) if "roseplay_lab" in content else content


def _arm_changes(settings: Sequence[str]) -> Settings:
    """Parse settings such as ``["prefill_max_tokens=64"]`` into the knobs and engine settings of an arm."""
    knobs = Knobs().to_dict()
    changes: Settings = {"knobs": {}, "config": {}}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in (*knobs, *ARM_CONFIG):
            names = ", ".join([*(name for name, knob in settings_of(Knobs).items() if knob.compared), *ARM_CONFIG])
            raise ValueError(f"{setting!r} is not a setting of an arm: write NAME=VALUE, NAME being one of {names}")
        changes["knobs" if name in knobs else "config"][name] = _value(name, text.strip())
    return changes


def _of_scenario(scenario: Scenario, arm: ArmName, info: EngineInfo | None) -> Settings:
    settings = scenario.settings(SIDE[arm])
    return settings if info is None else {**settings, "knobs": info.settable(settings["knobs"])}


def _changed_arm(body: Mapping[str, Any], arm: ArmName, changes: Settings, info: EngineInfo | None) -> Settings:
    """Returns the arm of the experiment, or of its scenario, with the changes applied."""
    if (given := body.get(arm.lower())) is None:
        scenario = find_scenario(body["scenario"]) if body.get("scenario") not in (None, OWN.name) else OWN
        given = _of_scenario(scenario, arm, info)
    knobs, config = given.get("knobs") or {}, given.get("config") or {}
    return {"knobs": {**knobs, **changes["knobs"]}, "config": {**config, **changes["config"]}}


def _value(name: str, text: str) -> Any:
    setting = SETTINGS.get(name)
    if setting is not None and isinstance(setting.values, Choice):
        means_none = setting.values.none and text.lower() in ("none", setting.values.none)
        return None if means_none else text  # "none" may also be one of its values
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
