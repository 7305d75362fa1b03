"""``/v1/runtime_config``: the knobs of the running engine, under our names and under vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body

from roseplay.config import Knobs
from roseplay.serve.errors import PREFIX, ApiError, OpenAIRoute, refuse_other_methods, under_their_name
from roseplay.serve.served import Served
from roseplay.settings import SettingError, settings_of

# vLLM's settings that mean the opposite of our knob.
_OPPOSITES = ("enforce_eager",)
_OURS = {setting.vllm: name for name, setting in settings_of(Knobs).items() if setting.vllm}


def runtime_config_router(served: Served) -> APIRouter:
    """Returns the routes that read and change the knobs."""
    router = APIRouter(prefix=PREFIX, route_class=OpenAIRoute)

    @router.get("/runtime_config")
    def read() -> dict[str, Any]:
        """All knobs, and those that vLLM has under its names."""
        return _document(served.engine.knobs)

    @router.patch("/runtime_config")
    def change(changes: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        """Change any of them, under either name; all or none. They act from the next step on."""
        try:
            return _document(served.set_knobs(_under_our_names(changes)))
        except SettingError as error:
            raise under_their_name(error, {_OURS.get(given, given): given for given in changes}) from None

    refuse_other_methods(router)
    return router


def _document(knobs: Knobs | Mapping[str, Any]) -> dict[str, Any]:
    ours = dict(knobs.to_dict() if isinstance(knobs, Knobs) else knobs)
    theirs = {vllm: ours[name] if vllm not in _OPPOSITES else not ours[name] for vllm, name in _OURS.items()}
    return {"object": "runtime_config", "knobs": ours, "vllm": theirs}


def _under_our_names(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes by our names.

    Raises:
        ApiError: an unknown name, or two values of one knob. SettingError: a value that cannot be turned round.
    """
    ours: dict[str, Any] = {}
    known = settings_of(Knobs)
    for given, value in changes.items():
        name = _OURS.get(given, given)
        if name not in known:
            names = ", ".join([*known, *_OURS])
            raise ApiError(400, f"there is no knob {given!r}: use {names}", param=given)
        if given in _OPPOSITES:
            known[name].check(name, value)
            value = not value
        if name in ours and ours[name] != value:
            raise ApiError(400, f"{given} and {name} are two names of one knob: send one", param=given)
        ours[name] = value
    return ours
