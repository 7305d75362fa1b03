"""Types of what programs and the page send: endpoints and routes are declared with them, and pydantic checks them."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_type_hints

from fastapi import Depends, HTTPException, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SkipValidation

from roseplay.formats.invalid import unfit, validated
from roseplay.formats.json_text import strict_json
from roseplay.play.answer_settings import NAMES, Settings
from roseplay.play.session import check_tab_id
from roseplay.recording.schema import MAX_LANES

MAX_IDS = 10_000  # per call of /stop


def _no_switch(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0."""
    if value is True or value is False:
        raise unfit("a number")
    return value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _all_or_some(lanes: list[int]) -> list[int]:
    if 0 in lanes and len(lanes) > 1:
        raise ValueError(f"there is no lane 0: use 1 to {MAX_LANES}, or only 0 for all")
    return lanes


Whole = Annotated[int, BeforeValidator(_no_switch)]  # also 2.0, and digits as text
Number = Annotated[float, BeforeValidator(_no_switch)]
Switch = Annotated[bool, BeforeValidator(lambda value: False if value is None else value)]
TabId = Annotated[str, AfterValidator(check_tab_id)]
TabIdOrNone = Annotated[
    str, BeforeValidator(lambda tab: tab or ""), AfterValidator(lambda tab: tab and check_tab_id(tab))
]
AnswerNumber = Annotated[Whole, Field(ge=0, le=3)]  # 0 stands for none
LaneNumber = Annotated[Whole, Field(ge=0, le=MAX_LANES)]  # 0 stands for none or all
LaneNumbers = Annotated[
    list[LaneNumber], Field(min_length=1, max_length=MAX_LANES), BeforeValidator(_as_list), AfterValidator(_all_or_some)
]
RequestIds = Annotated[list[Whole], Field(max_length=MAX_IDS), BeforeValidator(_as_list)]


def with_settings(method: Any) -> Any:
    """Give an endpoint, in place of its ``**settings``, an argument for each setting of answers that it does not name.

    They are not checked here but where they are read, see ``answer_settings.read``.
    """
    signature, types = inspect.signature(method), get_type_hints(Settings)
    named = [argument for argument in signature.parameters.values() if argument.kind is argument.POSITIONAL_OR_KEYWORD]
    unchecked: Any = SkipValidation
    more = {name: unchecked[types[name] | None] for name in NAMES if name not in signature.parameters}
    added = [named[-1].replace(name=name, default=None, annotation=annotation) for name, annotation in more.items()]
    method.__signature__ = signature.replace(parameters=[*named, *added])
    method.__annotations__.update(more)
    return method


def body_of(kind: type[BaseModel]) -> Any:
    """Returns a route's dependency that reads its body, as ``kind``; other bodies are refused with 422 and one line."""

    async def read(request: Request) -> BaseModel:
        try:
            return validated(kind, strict_json(await request.body()), "the body")
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    return Depends(read)
