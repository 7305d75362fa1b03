"""Request bodies: OpenAI's, with the fields that vLLM adds.

A field that has no effect here is refused by name, never ignored. Null, and values that ask for nothing, count as
absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    Tag,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from roseplay.config import API_FIELDS, SamplingParams
from roseplay.serve.errors import BRANCH, REFUSED
from roseplay.settings import defaults_of, settings_of

MOST_ANSWERS = 64  # per request: prompts times n
MOST_PROMPT_LOGPROBS = 1 << 19  # per answer that repeats its prompts, about 12 MB
# Values that ask for nothing, as the default or as "off", and are therefore accepted: of OpenAI, vLLM and llama.cpp.
_OFF = (
    "include_obfuscation store use_beam_search dry_multiplier dynatemp_range min_keep mirostat n_keep n_probs "
    "post_sampling_probs return_progress t_max_predict_ms timings_per_token xtc_probability"
).split()
_ON = ("cache_prompt", "include_reasoning", "skip_special_tokens", "spaces_between_special_tokens")
_ONE = ("best_of", "dynatemp_exponent", "length_penalty", "repeat_penalty", "typical_p")
_EMPTY = "annotations documents functions grammar lora mm_processor_kwargs suffix tools vllm_xargs".split()
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_OFF, (False,)),  # or 0, which is equal
    **dict.fromkeys((*_ON, *_ONE), (True,)),
    **dict.fromkeys(_EMPTY, ([], {}, "")),
    **dict.fromkeys(("dry_penalty_last_n", "id_slot", "top_n_sigma"), (-1,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5,),
    "modalities": (["text"],),
    "reasoning_format": ("none",),
    "repeat_last_n": (64,),
    "seed": (-1,),
    "service_tier": ("auto", "default"),
    "xtc_threshold": (0.1,),
}
_OF_TOOLS = ("function_call", "functions", "tool_choice", "tools")
_WHY = {
    **dict.fromkeys(_OF_TOOLS, "tools are not implemented"),
    **dict.fromkeys(("prediction", "suffix"), "it is not implemented"),
    "audio": "this server reads and writes text",
    "best_of": "use n",
    "include_obfuscation": "events are not padded",
    "modalities": "this server writes text",
    "store": "nothing is stored",
    "web_search_options": "this server does not search",
}


def _refused(field: str, why: str) -> PydanticCustomError:
    """Returns the error with which a validator refuses one of a body's fields."""
    return PydanticCustomError(REFUSED, "{why}", {"field": field, "why": why})  # type: ignore[arg-type]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        fields = {name: value for name, value in body.items() if value is not None}
        for name in list(fields):
            if any(fields[name] == neutral for neutral in _NEUTRAL.get(name, ())):
                del fields[name]
            elif name in _WHY and name not in cls.model_fields:
                raise _refused(name, f"{name} is not supported: {_WHY[name]}")
        return fields


# A field that takes text or a list is checked as the one that was sent, so that errors name what is wrong in it.
_TEXT, _LIST, _IDS, _LISTS = f"{BRANCH}text", f"{BRANCH}list", f"{BRANCH}token ids", f"{BRANCH}lists of token ids"


def _branch(value: Any) -> str | None:
    return _TEXT if isinstance(value, str) else _LIST if isinstance(value, list) else None


def _branch_of_prompt(prompt: Any) -> str | None:
    first = prompt[0] if isinstance(prompt, list) and prompt else ""
    return _branch(prompt) if isinstance(first, str) else _LISTS if isinstance(first, list) else _IDS


_NEITHER: Any = {"custom_error_type": "neither", "custom_error_message": "Input should be text or a list"}
_TextOrList = Discriminator(_branch, **_NEITHER)
_AT_FIRST: Any = Field(fail_fast=True)  # one error is reported, and a list may have very many
_Text = Annotated[str, Tag(_TEXT)]
_Texts = Annotated[list[str], _AT_FIRST, Tag(_LIST)]
_TokenIds = Annotated[list[int], _AT_FIRST]
_Prompts = _Text | _Texts | Annotated[_TokenIds, Tag(_IDS)] | Annotated[list[_TokenIds], _AT_FIRST, Tag(_LISTS)]
Usage = Literal["none", "last", "all"]

# Sampling parameters whose fields differ between completions and chats; the others are common to both.
_BY_ROUTE = ("max_new_tokens", "logprobs", "prompt_logprobs", "structured_outputs")
COMMON = {name: field for name, field in API_FIELDS.items() if name not in _BY_ROUTE}
_LISTS_OF: dict[Any, Any] = {
    tuple[str, ...]: Annotated[_Text | _Texts, _TextOrList],
    tuple[int, ...]: _TokenIds,
    tuple[tuple[int, float], ...]: dict[str, float],
}


def _field(name: str) -> tuple[Any, Any]:
    """Returns the type and the default of a sampling parameter's field in a body."""
    setting, default = settings_of(SamplingParams)[name], defaults_of(SamplingParams)[name]
    kind: Any = get_type_hints(SamplingParams)[name]
    kind = _LISTS_OF.get(kind, kind)
    if (off := getattr(setting.values, "off", None)) is not None:
        kind = Annotated[kind, AfterValidator(lambda value: None if value <= off else value)]
    default = default if setting.api_default is None else setting.api_default
    return kind, list(default) if isinstance(default, tuple) else default


class StreamOptions(_Body):
    """Whether the last chunk has the token counts and, as in vLLM, each earlier one those so far, if the last one has."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(_Body):
    """What ``response_format`` has beside its type. ``strict`` changes nothing: answers always follow the schema."""

    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema(self) -> ResponseFormat:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise _refused("json_schema", "json_schema belongs to the type json_schema: give both, or neither")
        return self

    @property
    def structure(self) -> dict[str, Any] | None:
        """The same as ``SamplingParams.structured_outputs``."""
        if self.type == "text":
            return None
        return {"json": {"type": "object"} if self.json_schema is None else self.json_schema.schema_}


if TYPE_CHECKING:
    _SamplingFields = _Body
else:
    _SamplingFields = create_model(
        "_SamplingFields", __base__=_Body, **{field: _field(name) for name, field in COMMON.items()}
    )


class Sampling(_SamplingFields):
    """The fields that completions and chats share. ``SamplingParams`` declares the sampling parameters among them, and
    checks their ranges.
    """

    prompt_field: ClassVar[str]  # name of the field with the prompt

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    # Labels for the sender's own use.
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    # What the answer tells of the tokens, as in vLLM.
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    # What is left of a prompt that is longer; -1 stands for the model's context.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    echo: bool = False

    @property
    def limit(self) -> str:
        """Name of the field that limits the answer's tokens."""
        return "max_tokens"

    @property
    def usage(self) -> Usage:
        """Which chunks of a stream contain token counts."""
        options = self.stream_options
        if options is None or not options.include_usage:
            return "none"
        return "all" if options.continuous_usage_stats else "last"

    @property
    def structure(self) -> tuple[str, dict[str, Any] | None]:
        """What the answer must follow, after the name of the field that says so."""
        if self.response_format is not None and self.response_format.structure is not None:
            return "response_format", self.response_format.structure
        outputs = self.structured_outputs or {}
        return "structured_outputs", {name: value for name, value in outputs.items() if value is not None} or None

    @model_validator(mode="after")
    def _one_structure(self) -> Sampling:
        if self.structured_outputs is not None and self.structure[0] == "response_format":
            raise _refused("structured_outputs", "structured_outputs and response_format are both given: leave one out")
        return self

    @model_validator(mode="after")
    def _options_of_streams(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            why = "stream_options are for streams: set stream to true, or leave them out"
            raise _refused("stream_options", why)
        if self.prompt_logprobs is not None and self.stream:
            raise _refused("prompt_logprobs", "prompt_logprobs are not for streams: set stream to false")
        return self


class CompletionBody(Sampling):
    """``POST /v1/completions``."""

    prompt_field = "prompt"
    prompt: Annotated[_Prompts, Discriminator(_branch_of_prompt, **_NEITHER)]
    max_tokens: int = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool = True

    @property
    def prompt_only(self) -> bool:
        """Whether the answer is the prompt and nothing else."""
        return self.echo and self.max_tokens == 0

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as text or as token ids."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


class TextPart(_Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class FunctionCall(_Body):
    """A function that an assistant called; its arguments are a JSON object, as text."""

    name: str
    arguments: Annotated[Json[dict[str, Any]], BeforeValidator(lambda text: "{}" if text == "" else text)]


class ToolCall(_Body):
    """A tool that an assistant called."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = Field(None, exclude=True)  # within a stream, from which some clients copy the call


class Message(_Body):
    """One message of a chat. What an assistant called, and what that returned, is history here. The chat template gets
    the message with its other fields, which some templates read.
    """

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: Annotated[_Text | Annotated[list[TextPart], _AT_FIRST, Tag(_LIST)], _TextOrList] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], _AT_FIRST] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _of_its_role(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise _refused("content", "content is missing: a message has text, or is an assistant's with tool_calls")
        for field, role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, field) and self.role != role:
                raise _refused(field, f"{field} belongs to messages with the role {role}, not {self.role}")
        return self

    def as_prompt(self) -> dict[str, Any]:
        """Returns the message as chat templates expect it: text, and the arguments of calls as objects."""
        text = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""
        role = "system" if self.role == "developer" else self.role
        more = self.model_dump(exclude={"role", "content"})
        return {"role": role, "content": text, **{field: value for field, value in more.items() if value}}


class ChatPrompt(_Body):
    """A chat as the model's chat template takes it."""

    messages: Annotated[list[Message], _AT_FIRST, Field(min_length=1)]
    # Variables of the template.
    reasoning_effort: str | None = None
    verbosity: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    # How the prompt ends, as in vLLM.
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False

    @model_validator(mode="after")
    def _end_of_prompt(self) -> ChatPrompt:
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            why = (
                "continue_final_message continues the last message: set add_generation_prompt to false, or leave it out"
            )
            raise _refused("continue_final_message", why)
        return self


class KvTransfer(_Body):
    """The part of vLLM's transfers of a prompt's KV cache that makes sense without one: the prompt's tokens."""

    prompt_token_ids: Annotated[_TokenIds, Field(min_length=1)]


class ChatBody(Sampling, ChatPrompt):
    """``POST /v1/chat/completions``."""

    prompt_field = "messages"
    kv_transfer_params: KvTransfer | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    parallel_tool_calls: bool = True  # without tools either value asks for nothing

    @property
    def limit(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @model_validator(mode="after")
    def _what_needs_or_excludes_another(self) -> ChatBody:
        field, structure = self.structure
        if structure is not None and self.continue_final_message:
            raise _refused(field, f"{field} is for a whole answer: leave it or continue_final_message out")
        if self.top_logprobs is not None and not self.logprobs:
            raise _refused("top_logprobs", "top_logprobs needs logprobs: set it to true, or leave top_logprobs out")
        if self.echo and not all(self.repeated):
            why = (
                "echo repeats the assistant's message that an answer continues: end messages with one, or leave it out"
            )
            raise _refused("echo", why)
        return self

    @property
    def chats(self) -> list[list[Message]]:
        """The chats to answer."""
        return [self.messages]

    @property
    def repeated(self) -> list[str]:
        """The assistant's text at the end of each chat, which ``echo`` repeats; empty where there is none."""
        ends = [chat[-1].as_prompt() for chat in self.chats]
        return [end["content"] if end["role"] == "assistant" else "" for end in ends]


class BatchBody(ChatBody):
    """``POST /v1/chat/completions/batch``: several chats, each with one answer."""

    messages: Annotated[  # type: ignore[assignment]
        list[Annotated[list[Message], _AT_FIRST, Field(min_length=1)]],
        _AT_FIRST,
        Field(min_length=1, max_length=MOST_ANSWERS),
    ]
    n: Literal[1] = 1
    stream: Literal[False] = False
    kv_transfer_params: None = None  # one prompt cannot stand for several chats

    @property
    def chats(self) -> list[list[Message]]:
        return self.messages  # type: ignore[return-value]


class _Counted(_Body):
    model: str | None = None
    return_token_strs: bool = False


class CountedText(_Counted):
    """``POST /tokenize`` for a text."""

    prompt: str
    add_special_tokens: bool = True


class CountedChat(_Counted, ChatPrompt):
    """``POST /tokenize`` for a chat."""


_TOKENIZE = f"{BRANCH}a chat", f"{BRANCH}a text"
TokenizeBody = Annotated[
    Annotated[CountedChat, Tag(_TOKENIZE[0])] | Annotated[CountedText, Tag(_TOKENIZE[1])],
    Discriminator(lambda body: _TOKENIZE[not (isinstance(body, dict) and "messages" in body)]),
]


class DetokenizeBody(_Body):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: _TokenIds
