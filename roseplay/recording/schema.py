"""The schema of a recording, see ``json_schema``."""

from __future__ import annotations

from roseplay.config import MAX_TENANT_CHARACTERS, Knobs
from roseplay.engine.messages import EntryRecord
from roseplay.engine.ttft_causes import TTFTCauses
from roseplay.formats.json_schema import (
    ANY,
    FAR,
    FLAG,
    Schema,
    choice,
    list_of,
    number,
    object_of,
    optional,
    row,
    scalar,
    text,
    whole,
)
from roseplay.recording.frame_rows import COLUMNS, StepRow, TokenRow
from roseplay.recording.tenant_numbers import MOST_PRIORITY
from roseplay.settings import Number, Setting, Switch, Whole, settings_of

FORMAT = 2
OLDEST_FORMAT = 1  # the oldest that can be read: each of its rows describes one block
MARK = "roseplay_recording"  # the header's field that holds the format
MAX_LANES = 8  # of a tab
MAX_BLOCKS = 2**24  # the page keeps nine bytes per block
MAX_STATES = 2**20  # of running requests, or kept
_LONG_TEXT = 4_000_000

_MS = number(null=True)
_SCALAR = scalar()

_DRAWN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
_CHOICE = object_of({"part": text(), "chosen": text(), "why": text(), "slow": text(null=True)})
_INFO = object_of(
    {
        **dict.fromkeys(("model", "architecture", "device", "dtype", "attention"), text()),
        **dict.fromkeys(("num_parameters", "weight_bytes", "kv_bytes_per_token"), whole(0, 10**15)),
        **dict.fromkeys(("vocab_size", "max_model_len", "threads"), whole()),
        "block_size": whole(1, 2**16),
        "num_blocks": whole(1, MAX_BLOCKS),
        **optional(whole(), "cuda_graphs"),
        **optional(text(null=True), "no_cuda_graphs"),
        **optional(whole(null=True), "max_step_tokens"),
        **optional(number(0), "decode_s", "prompt_token_s"),
        **optional(whole(0, MAX_STATES), "state_slots", "state_snapshots"),
        **optional(whole(0, 10**15), "state_bytes"),
        **optional(list_of(_CHOICE), "choices"),
        **optional(text(null=True), "server", "simulated", "evidence"),
        **optional(object_of(optional(number(), *_DRAWN)), "sampling_defaults"),
    }
)


def _knob(setting: Setting) -> Schema:
    """Returns the schema of a knob's value. Recordings may be older: upper limits of whole numbers are not checked."""
    values = setting.values
    if isinstance(values, Whole):
        return whole(values.least or 0, null=bool(values.none))
    if isinstance(values, Number):
        return number(values.least, FAR if values.most is None else values.most)
    return FLAG if isinstance(values, Switch) else text(100)


_KNOBS = {name: _knob(setting) for name, setting in settings_of(Knobs).items()}
_CHANGES = object_of(
    {name: {**row({"old": schema, "new": schema}), "optional": True} for name, schema in _KNOBS.items()},
    rest=row({"old": _SCALAR, "new": _SCALAR}),
)
_MISS = object_of(
    {
        "reason": text(100),  # see ``core/cache_miss.py``; readers ignore unknown ones
        **optional(whole(), "found"),
        **optional(whole(null=True), "position", "request", "step"),
    },
    null=True,
)
_ABOUT = object_of(
    {
        **optional(choice("lane", "burst", "steady", "own", "api"), "kind"),
        **optional(whole(1, MAX_LANES, null=True), "lane"),
        **optional(whole(null=True), "burst", "tenant"),
        **optional(whole(-MOST_PRIORITY, MOST_PRIORITY), "priority"),
        **optional(whole(), "prompt_tokens", "computed", "target", "cached", "shared", "tokens", "preemptions"),
        **optional(_MS, "arrived", "submitted", "scheduled", "first", "last", "finished"),
        **optional(_MS, "queue_ms", "sent_ms", "ttft_ms", "e2e_ms", "itl_p50", "itl_max"),
        **optional({**row(dict.fromkeys(TTFTCauses._fields, number())), "null": True}, "ttft_parts"),
        **optional(text(100, null=True), "reason"),
        **optional(FLAG, "thinking"),
        **optional(_MISS, "miss"),
        **optional(text(_LONG_TEXT, null=True), "error"),
    }
)
_BLOCKS = list_of(
    row(
        {
            "block": whole(0, MAX_BLOCKS),
            "references": whole(),
            "owner": whole(-1),
            "findable": whole(0, 2),
            "count": whole(1, MAX_BLOCKS),
        },
        missing=1,
    )
)
_STATES = list_of(row({"slot": whole(0, 2 * MAX_STATES), "request": whole(-1), "tokens": whole()}))
_COUNTS = ("requests", "prompt_tokens", "computed", "saved", "blocks_saved", "cached", "shared")
_STATS = object_of(
    {
        **optional(number(null=True), "tok_s", "running", "waiting", "saved_tokens", "saved_pct", "step", "kv_used"),
        **optional(number(null=True), *(f"{of}_p{p}" for of in ("ttft", "itl") for p in (50, 95, 99))),
        **optional(number(null=True), *(f"kv_{of}" for of in ("total", "free", "cached", "active", "shared"))),
        **optional(object_of(optional(number(0), *_COUNTS), null=True), "in_all"),
        **optional(FLAG, "saturated"),
    },
    null=True,
)
_BURST = object_of(
    {
        "burst": whole(),
        **dict.fromkeys(("kind", "label"), text(100)),
        "seed": number(-1e20, 1e20),
        **dict.fromkeys(("size", "done", "prompt_tokens", "computed", "saved", "blocks_saved"), whole()),
        **optional(whole(), "cached", "shared"),
        **dict.fromkeys(("ttft_p50", "ttft_p95"), _MS),
        **optional(whole(), "answer"),
    },
    null=True,
)
_ABSENT = object_of({}, rest=text())
# The load that another server reported at a time: see ``engine.telemetry.LoadEvent``.
_LOAD_FIGURES = {
    **optional(whole(null=True), "running", "waiting", "preemptions"),
    **optional(number(0, null=True), "kv_usage", "prefix_queries", "prefix_hits"),
}
_LOAD = object_of(
    {"t": number(), **_LOAD_FIGURES, **optional(object_of({}, rest=object_of(_LOAD_FIGURES)), "replicas")}
)
_SENTENCE = list_of(row({"text": text(1000), "style": text(20)}))
_STORY = object_of(
    {"about": text(20), "t": number(), "lines": list_of(_SENTENCE), **optional(whole(), "burst")}, null=True
)
_DEMO = object_of(
    {
        **optional(text(100), "name", "title"),
        **optional(whole(), "scene", "scenes", "seconds", "span_ms"),
        **optional(number(), "begun"),
        **optional(_SENTENCE, "caption"),
        **optional(list_of(object_of({}, rest=scalar())), "rings"),
        **optional(FLAG, "over"),
    },
    null=True,
)
_REQUEST_ID = whole()
_TENANTS = list_of(row({"request": _REQUEST_ID, "tenant": text(MAX_TENANT_CHARACTERS)}))
_SNAPSHOT = object_of(
    {
        "t": number(),
        "requests": list_of(row({"request": _REQUEST_ID, "about": _ABOUT})),
        **optional(
            list_of(row({"request": _REQUEST_ID, "title": text(_LONG_TEXT), "text": text(_LONG_TEXT)})), "words"
        ),
        **optional(_TENANTS, "tenants"),
        **optional(_BLOCKS, "blocks"),
        **optional(whole(0, MAX_BLOCKS), "blocks_used"),
        **optional(_STATES, "states"),
        **optional(_STATS, "stats"),
        **optional(_BURST, "burst"),
        **optional(_ABSENT, "absent"),
        **optional(_LOAD, "load"),
    }
)
# Schemas of rows with named columns; a recording's header may name further columns, in any order.
ROWS: dict[str, dict[str, Schema]] = {
    "steps": {
        **dict.fromkeys(StepRow._fields, whole()),
        **dict.fromkeys(("t0", "t1", "device_ms", "host_ms"), number()),
        **dict.fromkeys(("entries", "preempted", "copied"), list_of(_REQUEST_ID)),
        "graph": {**FLAG, "null": True, "optional": True},
        "limit": {**text(20, null=True), "optional": True},
        **optional(whole(), "state_slots", "states_kept", "recomputed_tokens", "swapped_out", "swapped_in"),
        **optional(whole(), "draft_tokens", "accepted_tokens"),
    },
    "entries": dict.fromkeys(EntryRecord._fields, whole()),
    "tokens": {**dict.fromkeys(TokenRow._fields, whole()), "t": number(), "itl_ms": _MS},
}
_EVENT = row(
    {
        "request": _REQUEST_ID,
        "event": choice("submitted", "scheduled", "first", "finished"),
        "t": number(),
        "about": _ABOUT,
    }
)

HEADER = object_of(
    {
        "info": _INFO,
        # A recording may be older than a knob; only slow motion is required, to interpret the times.
        "knobs": object_of(
            {name: {**it, "optional": name != "slow_motion"} for name, it in _KNOBS.items()}, rest=_SCALAR
        ),
        "columns": object_of(dict.fromkeys(COLUMNS, list_of(text(100))), optional=True),
        "snapshot": _SNAPSHOT,
        **optional(object_of({}, rest=_SCALAR, null=True), "environment"),
        **optional(text(), "version", "created", "words"),
    }
)
FRAME = object_of(
    {
        "t": number(),
        "steps": list_of({}),  # set by ``frame_schema``
        "tokens": list_of({}),
        "requests": list_of(_EVENT),
        "knobs": list_of(row({"t": number(), "step": whole(-1), "changes": _CHANGES})),
        "blocks": _BLOCKS,
        **optional(_STATES, "states"),
        **optional(list_of(row({"request": _REQUEST_ID, "title": text(_LONG_TEXT)})), "titles"),
        **optional(list_of(row({"request": _REQUEST_ID, "index": whole(), "text": text(_LONG_TEXT)})), "texts"),
        **optional(_TENANTS, "tenants"),
        **optional(_STATS, "stats"),
        **optional(_BURST, "burst"),
        **optional(_STORY, "story"),
        **optional(_DEMO, "demo"),
        **optional(list_of(_LOAD), "loads"),
        **optional(_ABSENT, "absent"),
    }
)


def frame_schema(columns: dict[str, list[str]]) -> Schema:
    """Returns the schema of frames whose rows have these columns.

    Raises:
        ValueError: a required column is missing, or a known one is repeated.
    """
    rows = {name: _named_row(name, columns[name]) for name in ROWS}
    rows["steps"]["columns"]["entries"] = list_of(rows["entries"])
    return {**FRAME, "fields": {**FRAME["fields"], "steps": list_of(rows["steps"]), "tokens": list_of(rows["tokens"])}}


def _named_row(rows: str, names: list[str]) -> Schema:
    known = ROWS[rows]
    for name, schema in known.items():
        if names.count(name) != 1 and not (schema.get("optional") and name not in names):
            raise ValueError(f"columns, {rows} should have {name!r} once")
    missing = next((i for i, name in enumerate(reversed(names)) if not known.get(name, {}).get("optional")), 0)
    return row({name: known.get(name, ANY) for name in names}, missing)
