"""Grammars: whatever schema is accepted, answers follow it to their end; masks allow exactly what may follow."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from roseplay.config import EngineConfig, SamplingParams, SettingError
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.core.step import Step, StepEntry
from roseplay.model import grammar
from roseplay.model.grammar import Grammars, Matcher, backend_of, open_backend
from roseplay.model.grammar_check import MARKS, walk
from roseplay.model.masks import StepMasks
from roseplay.model.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer("tiny-chat", EngineConfig())
EOS = TOKENIZER.eos_token_id
BACKEND = backend_of(TOKENIZER, len(TOKENIZER), [EOS])
LL, GRAMMARS = open_backend(BACKEND), Grammars(lambda: BACKEND)
PUNCTUATION = [token for token in range(len(TOKENIZER)) if MARKS.fullmatch(TOKENIZER.decode([token]))]
NAMES = st.sampled_from(["a", "b", "ab", "score", "x y", 'q"', "é"])
LONG_NAMES = {f"property{'x' * 380}{number}": {"type": "string"} for number in range(400)}
NUMBERS = st.integers(-50, 50)


def unique(names: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(names, max_size=3, unique=True)


def fields(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: st.just(value) for name, value in required.items()}, optional=optional)


LEAVES = st.one_of(
    st.booleans().filter(bool),
    st.builds(dict),
    fields({"type": "string"}, {"minLength": st.integers(0, 4), "maxLength": st.integers(0, 6)}),
    fields({"type": "string"}, {"pattern": st.sampled_from(["^[ab]{2,5}$", "x|y", "^é+$", "[0-9]$", "^$"])}),
    fields({"type": "string"}, {"format": st.sampled_from(["date", "ipv4", "uuid"])}),
    fields(
        {"type": "integer"},
        {"minimum": NUMBERS, "maximum": NUMBERS, "multipleOf": st.integers(1, 30), "exclusiveMinimum": NUMBERS},
    ),
    fields({"type": "number"}, {"minimum": NUMBERS, "exclusiveMaximum": NUMBERS}),
    fields({}, {"enum": st.lists(st.one_of(NAMES, NUMBERS, st.none(), st.booleans()), min_size=1, max_size=4)}),
    fields({}, {"const": st.one_of(NAMES, NUMBERS, st.lists(NUMBERS, max_size=2))}),
    fields({}, {"type": st.lists(st.sampled_from(["string", "null", "boolean"]), min_size=1, max_size=2, unique=True)}),
)


def nested(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    count = st.integers(0, 4)
    return st.one_of(
        fields({"type": "array"}, {"items": schemas, "minItems": count, "maxItems": count}),
        fields({"type": "array"}, {"prefixItems": st.lists(schemas, max_size=2), "items": schemas, "minItems": count}),
        fields(
            {"type": "object"},
            {
                "properties": st.dictionaries(NAMES, schemas, max_size=3),
                "required": unique(NAMES),
                "additionalProperties": st.one_of(st.booleans(), schemas),
                "patternProperties": st.dictionaries(st.sampled_from(["^score$", "^a", "b$"]), schemas, max_size=1),
                "minProperties": count,
                "maxProperties": count,
            },
        ),
        fields({}, {"anyOf": st.lists(schemas, min_size=1, max_size=3)}),
        fields({}, {"allOf": st.lists(schemas, min_size=1, max_size=2)}),
    )


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=6)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return GRAMMARS


def structured(**structure: Any) -> str:
    params = SamplingParams(structured_outputs=structure)
    assert params.structured_outputs is not None
    return params.structured_outputs


def mask_of(matcher: Matcher, draft: Sequence[int] = ()) -> np.ndarray:
    bits = np.zeros((1 + len(draft), matcher.words), np.int32)
    matcher.fill(bits, draft)
    return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").astype(bool)


def check(structure: str) -> None:
    """As a client's process does."""
    walk(LL, grammar.compile_grammar(LL, structure), structure, PUNCTUATION)


def asked(token_ids: list[int]) -> Request:
    request = Request(0, [1, *token_ids], SamplingParams(), eos_token_ids=frozenset([EOS]))
    request.num_prompt_tokens = 1
    return request


def answer(matcher: Matcher, seed: int) -> list[int] | None:
    """A random answer, which is mostly punctuation so that it ends; None if it does not."""
    draw, request = random.Random(seed), asked([])
    for number in range(250):
        matcher.follow(request, -1)
        allowed = np.flatnonzero(mask_of(matcher)[0])
        assert matcher.error is None, TOKENIZER.decode(request.token_ids[1:])
        marks = [token for token in PUNCTUATION if token in allowed] if number % 2 else []
        token = EOS if EOS in allowed and number > 20 else int(draw.choice(marks or list(allowed)))
        if token == EOS:
            return request.token_ids[1:]
        request.token_ids.append(token)
    return None


@settings(max_examples=80, derandomize=True, suppress_health_check=list(HealthCheck))
@given(SCHEMAS)
def test_answers_follow_every_schema_that_is_accepted(schema: Any) -> None:
    grammars = GRAMMARS
    structure = structured(json=schema)
    try:
        check(structure)
    except SettingError as error:
        assert "\n" not in str(error)
        return
    for seed in range(3):
        token_ids = answer(grammars.start(structure).result(60), seed)
        if token_ids is not None:
            Draft202012Validator(schema).validate(json.loads(TOKENIZER.decode(token_ids)))


@pytest.mark.parametrize(
    ("structure", "refusal"),
    [
        ({"json": False}, "no text matches it"),
        ({"json": "[]"}, "a JSON schema is an object or a boolean"),
        (
            {"json": {"x-guidance": {"lenient": True}}},
            "x-guidance, llguidance's options, is not supported: leave it out",
        ),
        ({"json": {"type": "object", "minProperties": 2}}, "minProperties is 2, but only the 0 required names and one"),
        ({"json": {"items": {"minProperties": 3, "required": ["a"]}}}, "minProperties is 3, but only the 1 required"),
        ({"json": {"required": ["a"], "properties": LONG_NAMES}}, "after '.*', lexer error: too many expressions"),
        ({"json": {"$defs": {"minProperties": {"minProperties": 2}}}}, "minProperties is 2, but only the 0 required"),
        (
            {"json": {"properties": {f"p{n}": {} for n in range(500)}, "type": "object"}},
            "after '.*', Parser Error: .* items",
        ),
        (
            {
                "json": {
                    "properties": {"score": {"type": "integer", "multipleOf": 5}},
                    "patternProperties": {"^score$": {"type": "integer"}},
                    "required": ["score"],
                    "additionalProperties": False,
                }
            },
            "after '.*[05],', no token of the model can follow",
        ),
    ],
)
def test_what_would_become_impossible_is_refused(grammars: Grammars, structure: dict[str, Any], refusal: str) -> None:
    with pytest.raises(SettingError, match=f"^structured_outputs cannot be followed: {refusal}"):
        check(structured(**structure))


@pytest.mark.parametrize("schemas", grammar._NAMED)
@pytest.mark.parametrize("name", ["a", "minProperties", *grammar._DATA, *grammar._NAMED])
def test_a_schema_is_checked_whatever_its_name(grammars: Grammars, schemas: str, name: str) -> None:
    with pytest.raises(SettingError, match="minProperties is 2"):
        grammars.start(structured(json={schemas: {name: {"minProperties": 2}}})).result(60)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"minProperties": 1},
        {"minProperties": 2, "required": ["a"]},
        {"properties": {"minProperties": {"const": 9}, "x-guidance": {}}},
        {"const": {"minProperties": 9}},
    ],
)
def test_what_only_looks_so_is_accepted(grammars: Grammars, schema: Any) -> None:
    assert grammars.start(structured(json=schema)).result(60).error is None


def test_thousands_of_choices_are_followed(grammars: Grammars) -> None:
    texts = [f'{number} é\n"' for number in range(5000)]
    token_ids = answer(grammars.start(structured(choice=texts)).result(60), 1)
    assert token_ids is not None
    assert TOKENIZER.decode(token_ids) in texts


def test_a_grammar_that_failed_is_compiled_again(grammars: Grammars) -> None:
    """Its answers share what failed, here by a token that may not follow."""
    structure = structured(regex="abc")
    matcher = grammars.start(structure).result(60)
    assert grammars.find(structure) is not None
    matcher.follow(asked([PUNCTUATION[0]]), -1)
    assert matcher.error
    assert grammars.find(structure) is None
    assert grammars.start(structure).result(60).error is None
    assert grammars.find(structure) is not None


def test_rows_after_a_token_that_may_not_follow_are_empty(grammars: Grammars) -> None:
    """Also after the end of the answer, and what of the draft would be allowed later."""
    matcher = grammars.start(structured(regex="ab?(cd)?")).result(60)
    a, b, x = (TOKENIZER.encode(text, add_special_tokens=False)[0] for text in "abx")
    for refused in (x, EOS):
        rows = mask_of(matcher, [a, refused, b])
        assert rows.any(axis=1).tolist() == [True, True, False, False]
        assert matcher.error is None


def test_a_token_that_is_still_on_the_device_is_waited_for(grammars: Grammars) -> None:
    """None could be drawn, or it ends the answer: the matcher goes on as soon as the host knows."""
    a = TOKENIZER.encode("a", add_special_tokens=False)[0]
    matcher = grammars.start(structured(regex="a+")).result(60)
    for late in (-1, EOS):
        matcher.follow(asked([PLACEHOLDER]), late)
    assert matcher.error is None
    assert not mask_of(matcher)[0, EOS], "nothing of the answer is taken"
    matcher.follow(asked([PLACEHOLDER]), a)
    assert mask_of(matcher)[0, EOS]


def test_masks_cover_the_tokenizer_where_the_model_has_fewer_tokens() -> None:
    grammars = Grammars(lambda: backend_of(TOKENIZER, len(TOKENIZER) - 100, [EOS]))
    assert grammars.start(structured(regex="a")).result(60).words * 32 >= len(TOKENIZER)


def test_threads_may_share_a_compiler() -> None:
    grammars = Grammars(lambda: backend_of(TOKENIZER, len(TOKENIZER), [EOS]), kept_bytes=60 << 20)
    structures = [structured(choice=[str(number)]) for number in range(100)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for compiled in threads.map(grammars.start, structures * 8):
                assert compiled.result(60).error is None
    finally:
        sys.setswitchinterval(interval)


class Panic(BaseException):
    """Not an Exception, as a panic in an extension."""


class Panics:
    """A matcher that fails when its mask is filled in part."""

    def __init__(self, matcher: Matcher) -> None:
        self.words, self.follow, self._fill = matcher.words, matcher.follow, matcher.fill
        self.error: str | None = None

    def fill(self, masks: Any, draft: Any) -> None:
        self._fill(masks, draft)
        raise Panic("index out of bounds")


def test_a_panic_ends_only_its_own_request(grammars: Grammars) -> None:
    """Nothing of a mask that was filled in part is allowed."""
    matchers: list[Any] = [grammars.start(structured(regex="ab")).result(60) for _ in range(3)]
    matchers[1] = Panics(matchers[1])
    requests = [Request(n, [1], SamplingParams(), matcher=matcher) for n, matcher in enumerate(matchers)]
    step = Step(0, [StepEntry(request, 0, 1, 1, samples=True, logits_entry=n) for n, request in enumerate(requests)])
    with ThreadPoolExecutor(1) as thread:
        forbidden = StepMasks(step, thread, dict, beside=True, pin=False).forbidden()
    assert [bool((~row).any()) for row in forbidden] == [True, False, True]
    assert [matcher.error for matcher in matchers] == [None, "Panic: index out of bounds", None]


def test_the_time_that_a_step_waits_for_its_masks_is_all_counted(grammars: Grammars) -> None:
    """They may be asked for several times: before the step runs, and for each part of its rows."""
    request = Request(0, [1], SamplingParams(), matcher=grammars.start(structured(regex="ab")).result(60))
    with ThreadPoolExecutor(1) as thread:
        masks = StepMasks(Step(0, [StepEntry(request, 0, 1, 1, samples=True)]), thread, dict, beside=False, pin=False)
    waited = [masks.waited_ns]
    for _ in range(3):
        masks.forbidden()
        waited.append(masks.waited_ns)
    assert 0 < waited[0] < waited[1] < waited[2] < waited[3]
