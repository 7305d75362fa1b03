"""The schema of a result document, see ``json_schema``."""

from __future__ import annotations

from roseplay.formats.json_schema import ANY, choice, list_of, number, object_of, optional, row, scalar, text, whole
from roseplay.lab.spec import ARMS, MAX_REPEATS

_TEXT = text(2000)
_COUNT = number(0)
_PLAIN = object_of({}, rest=scalar(2000))

_REQUEST = object_of(
    {
        **dict.fromkeys(("index", "arrival_ms", "prompt_tokens", "completion_tokens", "submit_ms"), _COUNT),
        **dict.fromkeys(("queue_ms", "ttft_ms", "tpot_ms", "e2e_ms", "itl_p99_ms", "itl_max_ms"), number(0, null=True)),
        # Results of earlier versions lack these two. Time 0 is the first submit, a moment after its arrival.
        **optional(number(), "intended_arrival_ms"),
        **optional(number(0, null=True), "ttft_from_arrival_ms"),
        "reason": _TEXT,
    }
)
_STEP = row(
    {
        **dict.fromkeys(("start_ms", "end_ms"), number()),
        **dict.fromkeys(("prompt_tokens", "decode_tokens", "running", "waiting", "blocks"), _COUNT),
    }
)
_RUN = object_of(
    {
        "arm": choice(*ARMS),
        **dict.fromkeys(("repeat", "seconds"), _COUNT),
        **dict.fromkeys(("saved_tokens", "preemptions"), number(0, null=True)),  # a server may not tell these
        "requests": list_of(_REQUEST, numbered=True),
        "itl_ms": list_of(_COUNT),
        "steps": list_of(_STEP),
        "tokens_sha256": _TEXT,
    }
)
# Its requests are checked by ``traffic.own``.
TRAFFIC = object_of({"name": _TEXT, "requests": list_of(ANY)}, optional=True)
_CONFIG = object_of(optional(_COUNT, "num_blocks", "block_size"), rest=scalar(2000))  # a server does not tell these
_ARM = object_of({"label": _TEXT, "knobs": _PLAIN, "config": _CONFIG, "differs": list_of(_TEXT)})
DOCUMENT = object_of(
    {
        **dict.fromkeys(("id", "created", "scenario", "title", "model", "device", "dtype"), _TEXT),
        "name": text(2000, null=True),
        "look": list_of(_TEXT),
        "environment": _PLAIN,
        "seed": number(),
        "repeats": whole(1, MAX_REPEATS),
        "order": list_of(choice(*ARMS)),
        **optional(number(0.1, 100), "max_spread_pct"),
        "params": _PLAIN,
        "arms": object_of(dict.fromkeys(ARMS, _ARM)),
        "traffic": TRAFFIC,
        "limits": object_of(dict.fromkeys(("ttft_ms", "itl_ms"), _COUNT)),
        "runs": list_of(_RUN, numbered=True),
    }
)
