"""The events behind the page's controls, which are also its named endpoints: buttons, keys and programs share them.

The page's scripts call them through ``shared/endpoints.js``. The component made here has an event for each of them,
which Gradio's own client sends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import gradio as gr
from gradio.components.api_component import Api
from gradio_client.utils import python_type_to_json_schema

from roseplay.play.markup import html
from roseplay.play.web import assets
from roseplay.play.web.calls import EVENT

_MODULE = "shared/endpoints.js"


def add_events(endpoints: Mapping[Callable[..., Any], str]) -> None:
    """Make an event of the page, and an endpoint with the function's name, for each function.

    Args:
        endpoints: the functions, whose parameters all have a type and a default, with their descriptions.
    """
    names = [endpoint.__name__ for endpoint in endpoints]
    caller = html("", elem_id="rp-endpoints", js_on_load=assets.mount(_MODULE, *names))
    for endpoint, about in endpoints.items():
        name, signature = endpoint.__name__, inspect.signature(endpoint)
        types = get_type_hints(endpoint)
        result = _value(None, types["return"], "result")
        inputs = [_value(one.default, types[one.name], one.name) for one in signature.parameters.values()]
        # Queued, since only then is a refusal a message on the page instead of a failed request.
        event = getattr(caller, name)(
            endpoint,
            inputs,
            result,
            js=assets.call(_MODULE, "argumentsOf", name, ",".join(signature.parameters)),
            api_name=name,
            api_description=about,
            show_progress="hidden",
            trigger_mode="multiple",
            concurrency_limit=None,
        )
        ended = assets.call(_MODULE, "ended", name)
        event.success(None, result, None, js=ended, **EVENT)
        event.failure(None, None, None, js=ended, **EVENT)


def _value(default: Any, annotation: Any, name: str) -> gr.components.Component:
    """Returns a component for a value of an endpoint, without a control."""
    return Api(default, python_type_to_json_schema(annotation), name)
