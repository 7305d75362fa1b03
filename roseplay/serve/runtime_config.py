"""``/v1/runtime_config``: the knobs of the running engine, under our names and under vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body

from roseplay.config import Knobs
from roseplay.serve.errors import PREFIX, ApiError, OpenAIRoute, refuse_other_methods, under_their_name
from roseplay.serve.served import Served
from roseplay.settings import SettingError, settings_of

_KNOBS = settings_of(Knobs)
_OURS = {setting.vllm: name for name, setting in _KNOBS.items() if setting.vllm}


def runtime_config_router(served: Served) -> APIRouter:
    """Returns the routes that read and change the knobs."""
    router = APIRouter(prefix=PREFIX, route_class=OpenAIRoute)

    @router.get("/runtime_config")
    def read() -> dict[str, object]:
        """All knobs, and those that vLLM has under its names."""
        return _document(served.engine.knobs)

    @router.patch("/runtime_config")
    def change(changes: Annotated[dict[str, Any], Body()]) -> dict[str, object]:
        """Change any of them, under either name; all or none. They act from the next step on."""
        try:
            return _document(served.set_knobs(_under_our_names(changes)))
        except SettingError as error:
            raise under_their_name(error, {_OURS.get(key, key): key for key in changes}) from None

    refuse_other_methods(router)
    return router


def _document(knobs: Knobs | Mapping[str, Any]) -> dict[str, object]:
    ours = dict(knobs.to_dict() if isinstance(knobs, Knobs) else knobs)
    theirs = {vllm: not ours[name] if _KNOBS[name].opposite else ours[name] for vllm, name in _OURS.items()}
    return {"object": "runtime_config", "knobs": ours, "vllm": theirs}


def _under_our_names(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes by our names.

    Raises:
        ApiError: an unknown name, or two values of one knob. SettingError: a value that cannot be turned round.
    """
    ours: dict[str, Any] = {}
    for key, value in changes.items():
        name = _OURS.get(key, key)
        if name not in _KNOBS:
            names = ", ".join([*_KNOBS, *_OURS])
            raise ApiError(400, f"there is no knob {key!r}: use {names}", param=key)
        if key != name and _KNOBS[name].opposite:
            _KNOBS[name].check(name, value)
            value = not value
        if name in ours and ours[name] != value:
            raise ApiError(400, f"{key} and {name} are two names of one knob: send one", param=key)
        ours[name] = value
    return ours
