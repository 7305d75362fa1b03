"""The flags of ``roseplay lab``, and the experiment and engine settings they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roseplay.arguments import Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import EngineConfig, Knobs
from roseplay.formats.json_text import strict_json
from roseplay.lab.background import RUN_LIMIT_S
from roseplay.lab.document import experiment_of
from roseplay.lab.lab import parse_any
from roseplay.lab.own_traffic import OWN, OwnTraffic
from roseplay.lab.point_flags import add_point_flags, point_fields
from roseplay.lab.points_document import is_of_points
from roseplay.lab.spec import (
    ARM_CONFIG,
    ARMS,
    DEFAULT_LIMITS,
    LENGTHS,
    MAX_NAME,
    MAX_REPEATS,
    find_scenario,
    parse_seed,
    scenario_arm,
)
from roseplay.remote.address import add_server_address_flags, server_addresses
from roseplay.settings import Choice, settings_of
from roseplay.traffic.own import MAX_BYTES, parse_traffic
from roseplay.traffic.scenario import PARAM_LIMITS, checked_param
from roseplay.traffic.scenarios import SCENARIOS

_DESCRIPTION = (
    "Play the same seeded traffic under two settings, A and B, each on a fresh engine of its own, in the order "
    "A B B A ..., and say in sentences how they differ."
)
_EXAMPLES = """\
examples:
  roseplay lab token-budget                          the scenario's own A and B
  roseplay lab token-budget --b prefill_max_tokens=128 --repeats 3
  roseplay lab poisson --a block_size=8 --b block_size=32 --model Qwen/Qwen3-0.6B
  roseplay lab admission --model gpt2-124m --random-weights --save result.json
  roseplay lab poisson --sweep rate --from 1 --to 12 --points 12 --seconds 5 --repeats 3
  roseplay lab token-budget --find prefill-budget --itl-p99 20 --ttft-p95 250
  roseplay lab --traffic requests.csv --b max_batch_size=8
  roseplay lab poisson --url http://host:8000/v1 --url-b http://host:8001/v1 --repeats 3
  roseplay lab --spec result.json --json > again.json   repeat a result that the page exported

scenarios:
"""
_WORDS = {"on": True, "true": True, "off": False, "false": False, "none": None, "null": None, "unlimited": None}
_NOT_FLAGS = ("seed", "worker", "telemetry_steps", "kv_events")


def parser() -> Parser:
    """Returns the command line of ``roseplay lab``."""
    scenarios = "\n".join(f"  {name:<18} {scenario.card}" for name, scenario in SCENARIOS.items())
    lab = Parser(
        prog="roseplay lab",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + scenarios,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    lab.add_argument("scenario", nargs="?", metavar="SCENARIO", help="the traffic, and what A and B are; see below")
    group = lab.add_argument_group("settings of the two arms")
    for arm in ARMS:
        group.add_argument(
            f"--{arm.lower()}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"change a knob or an engine setting of {arm}; may be repeated",
        )
    group.add_argument(
        "--spec",
        metavar="FILE",
        help="read the experiment from a JSON file: a result that the lab exported, or what /lab takes",
    )
    _add_experiment_flags(lab)
    add_point_flags(lab)
    group = lab.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the whole result as JSON; the page can open it")
    group.add_argument("--csv", action="store_true", help="print the values of --sweep or the tries of --find as CSV")
    group.add_argument("--save", metavar="FILE", help="write the whole result as JSON there, too, to keep or open it")
    group.add_argument("--report", metavar="FILE", help="write the result as an HTML report, too")
    add_server_address_flags(
        lab.add_argument_group("other servers in place of engines; A and B then have no engine settings")
    )
    group = lab.add_argument_group("engine of both arms")
    add_model_flag(group)
    add_field_flags(group, EngineConfig, leave_out=_NOT_FLAGS)
    return lab


def _add_experiment_flags(lab: Parser) -> None:
    group = lab.add_argument_group("traffic and runs; left out, as in the file or the scenario")
    group.add_argument(
        "--traffic",
        metavar="FILE",
        help="send the requests of a file instead: JSONL or CSV with arrival_s, prompt (or prompt_tokens) and "
        "answer_tokens, or conversations as JSON; no SCENARIO is needed then",
    )
    group.add_argument("--seed", type=int, metavar="N", help="decides prompts and arrival times (default: 0)")
    group.add_argument(
        "--repeats", type=int, metavar="N", help="runs of each arm (default: 1), or of each value (default: 3)"
    )
    group.add_argument(
        "--max-spread",
        type=float,
        metavar="PCT",
        help="repeat further, each arm or value up to "
        f"{MAX_REPEATS} times, until the spread of the scenario's figure is at most PCT percent of its median",
    )
    group.add_argument(
        "--length", type=int, choices=LENGTHS, help="send so many times the scenario's requests (default: 1)"
    )
    group.add_argument("--prompt", metavar="TEXT", help="text of each prompt, instead of questions taken in turn")
    group.add_argument(
        "--keep-cache", action="store_true", help="keep cached blocks from run to run, to see a prefix cache in use"
    )
    group.add_argument("--num-requests", type=int, metavar="N", help="requests of a run")
    group.add_argument("--max-new-tokens", type=int, metavar="N", help="tokens of each answer")
    group.add_argument(
        "--rate-per-s",
        type=float,
        metavar="RATE",
        help="requests a second, for scenarios with a rate, and instead of the arrivals in a file of --traffic",
    )
    for name, what in (
        ("ttft_ms", "time to first token"),
        ("itl_ms", "99th percentile of its own inter-token latencies"),
    ):
        group.add_argument(
            f"--limit-{name.replace('_', '-')}",
            dest=name,
            type=float,
            metavar="MS",
            help=f"goodput counts requests whose {what} is at most this (default: {DEFAULT_LIMITS[name]:g})",
        )
    group.add_argument(
        "--run-limit-s",
        type=float,
        default=RUN_LIMIT_S,
        metavar="S",
        help="give up a run that takes longer (default: %(default)g)",
    )


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Returns the engine settings that both arms start from; raises ``ValueError`` for a bad value."""
    given = given_fields(EngineConfig, vars(options))
    settings = {name: value for name, value in given.items() if name not in _NOT_FLAGS}  # --seed is the experiment's
    if settings and options.url is not None:
        flags = ", ".join("--" + name.replace("_", "-") for name in settings)
        raise ValueError(f"--url measures a server that runs already: leave out {flags}")
    return EngineConfig(worker="process", **settings)


def experiment_body(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the experiment as ``parse_experiment`` reads it: the spec file, overridden by the flags.

    Raises:
        ValueError: one sentence for the user.
    """
    body = {} if options.spec is None else _read_spec(Path(options.spec))
    named = {
        **{name: getattr(options, name) for name in ("scenario", "seed", "repeats", "length")},
        "max_spread_pct": options.max_spread,
    }
    body |= {name: value for name, value in named.items() if value is not None}
    body |= point_fields(options)
    if options.traffic is not None:
        seed = parse_seed(body.get("seed"))
        body["traffic"] = _read_traffic(Path(options.traffic), options.rate_per_s, seed)
        body["params"] = {}
    if body.get("scenario") is None and body.get("traffic") is None:
        raise ValueError("name a scenario, or a file with --spec (--help lists the scenarios)")
    parse_any(body)  # a file may hold anything; what follows relies on the types
    for part, names in (("params", (*PARAM_LIMITS, "prompt")), ("limits", DEFAULT_LIMITS)):
        given = {name: value for name in names if (value := getattr(options, name)) is not None}
        if options.traffic is not None:
            given.pop("rate_per_s", None)  # is the traffic's
        if given:
            body[part] = {**(body.get(part) or {}), **given}
    servers = [address.url for address in server_addresses(vars(options))]
    if len(servers) > 1 and ("sweep" in body or "find" in body):
        raise ValueError("a sweep or a search measures one server: leave out --url-b")
    for number, arm in enumerate(ARMS[: 1 if "sweep" in body or "find" in body else 2]):
        changes = _arm_changes(getattr(options, arm.lower()))
        if any(changes.values()):
            body[arm.lower()] = _changed_arm(body, arm, changes)
        if servers:
            body[arm.lower()] = _at_server(body, arm, servers[number % len(servers)], alone=len(servers) == 1)
    return body


def _at_server(body: Mapping[str, Any], arm: str, url: str, *, alone: bool) -> dict[str, Any]:
    """Returns an arm for a server. Of the scenario's settings it has the knobs, unless two servers are compared."""
    given = body.get(arm.lower())
    if given is None and alone and "sweep" not in body and "find" not in body and body.get("scenario") in SCENARIOS:
        scenario = find_scenario(body["scenario"])
        given = {"knobs": {**scenario.knobs, **scenario_arm(scenario, arm)["knobs"]}}
    return {"knobs": (given or {}).get("knobs") or {}, "config": {**((given or {}).get("config") or {}), "url": url}}


def _read_traffic(path: Path, rate_per_s: float | None, seed: int) -> dict[str, Any]:
    """Returns a file as an experiment's ``traffic``; raises ``ValueError`` that says what is wrong with it."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if rate_per_s is not None:
        checked_param("rate_per_s", rate_per_s)
    try:
        found = parse_traffic(content, rate_per_s=rate_per_s, seed=seed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return OwnTraffic(path.name[:MAX_NAME], tuple(found)).document()


def _read_spec(path: Path) -> dict[str, Any]:
    """Read an experiment, or a result to repeat; raises ``ValueError`` if the file is neither."""
    try:
        content = strict_json(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path} is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f'{path} holds no experiment: write a JSON object, such as {{"scenario": "token-budget"}}')
    if is_of_points(content):
        raise ValueError(f"{path} is a sweep or a search: only a comparison can be repeated from its result")
    return experiment_of(content) if "roseplay_lab" in content else content


def _arm_changes(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns settings such as ``["prefill_max_tokens=64"]`` as the knobs and engine settings of an arm."""
    knobs = Knobs().to_dict()
    changes: dict[str, dict[str, Any]] = {"knobs": {}, "config": {}}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in (*knobs, *ARM_CONFIG):
            raise ValueError(f"{setting!r} is no setting of an arm: write NAME=VALUE, with a name of {_names()}")
        changes["knobs" if name in knobs else "config"][name] = _value(name, text.strip())
    return changes


def _changed_arm(body: Mapping[str, Any], arm: str, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the arm of the experiment, or of its scenario, with the changes applied."""
    given = body.get(arm.lower())
    if given is None:
        scenario = find_scenario(body["scenario"]) if body.get("scenario") not in (None, OWN.name) else OWN
        own, common = scenario_arm(scenario, arm), {"knobs": scenario.knobs, "config": scenario.config}
        given = {part: {**common[part], **own[part]} for part in changes}
    return {**given, **{part: {**(given.get(part) or {}), **changes[part]} for part in changes}}


def _value(name: str, text: str) -> Any:
    setting = {**settings_of(Knobs), **settings_of(EngineConfig)}.get(name)
    if setting is not None and isinstance(setting.values, Choice):
        return text  # "none" is one of its words
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _names() -> str:
    return ", ".join([*(name for name, knob in settings_of(Knobs).items() if knob.lab), *ARM_CONFIG])
