"""One transformers family against the engine: a small random model of its default config, with several schedules."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from roseplay import Engine, SamplingParams
from roseplay.engine.errors import EngineStartError
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.probe import randomise
from roseplay.model.shrink import VOCABULARY, shrink
from roseplay.model.source import quiet
from roseplay.model.support import check_class, check_config, class_config
from tests.engine.greedy import assert_greedy, assert_same_until_a_tie, generate

Kind = Literal["equal", "wrong", "refused", "not built"]
NEW_TOKENS = 10
# Blocks of 4 tokens and windows of 8: prompts longer than several windows, short ones, and exact multiples.
_LENGTHS = (37, 24, 19, 5, 1)
# Values that real configs set but some default configs leave out.
_UNSET = {
    "num_key_value_heads": 2, "n_routed_experts": 8, "num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "moe_topk": 2, "num_shared_expert": 1, "q_lora_rank": 16,
    "top_k_experts": 2, "moe_intermediate_size": 64, "topk_method": "greedy",
}  # fmt: skip
# Other values that default configs lack, by model type.
_MORE: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 8, "clip_qkv": 8.0}},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "xmod": {"default_language": "en_XX"},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
}
# Engine settings, with several sets of knobs for each. The second pool is too small for all requests at once.
_SCHEDULES: tuple[tuple[dict[str, Any], tuple[dict[str, Any], ...]], ...] = (
    ({"num_blocks": 100}, ({}, {"prefill_max_tokens": 7, "prefix_cache": False}, {"step_max_tokens": 5})),
    ({"num_blocks": 20, "attention": "gather"}, ({"prefill_max_tokens": 11},)),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for a model type: the engine's tokens equal those of ``generate()``, or the reason ``why`` not."""

    model_type: str
    kind: Kind
    why: str = ""


def check_family(model_type: str) -> Finding:
    """Check one causal model type of transformers. Never raises."""
    with quiet():
        try:
            config_class: Any = CONFIG_MAPPING[model_type]
            model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
            config = class_config(config_class(**_MORE.get(model_type, {})), model_class)
        except Exception as error:
            return Finding(model_type, "not built", _line("no default config", error))
        try:
            check_config(config, name=model_type)
            check_class(model_class, config, name=model_type)
        except UnsupportedModelError as error:
            return Finding(model_type, "refused", _reason(error))
        try:
            model = small_model(config, model_class)
        except Exception as error:
            return Finding(model_type, "not built", _line("no small model", error))
        return check_model(model_type, model)


def send_finding(model_type: str, sender: Connection) -> None:
    """Run ``check_family`` in its own process."""
    torch.set_num_threads(1)
    sender.send(check_family(model_type))


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """A config with the values that real ones set, and with narrow heads, for which kernels compile faster."""
    values.update({name: value for name, value in _UNSET.items() if name in values and values[name] is None})
    if values.get("is_decoder") is False:
        values["is_decoder"] = True  # encoders such as BERT can be configured as decoders
    if "head_dim" in values:
        values["head_dim"] = min(values["head_dim"] or values["hidden_size"] // values["num_attention_heads"], 64)
    if "layer_types" in values and values["layer_types"] is None:
        values["layer_types"] = ["full_attention"] * values["num_hidden_layers"]
    for changes in (values.get("per_layer_config") or {}).values():
        if "head_dim" in changes:
            changes["head_dim"] = min(changes["head_dim"], 96)
    return values


def small_model(config: Any, model_class: type) -> PreTrainedModel:
    """A small model of the config's family, in float32 with eager attention and random weights."""
    small = shrink(type(config).from_dict(_completed(config.to_dict())), widths=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class._from_config(small, attn_implementation="eager", dtype=torch.float32).eval()  # type: ignore[attr-defined]
    randomise(model)
    return model


def prompts() -> list[list[int]]:
    """Random prompts; two share a prefix, and two are equal."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randint(4, VOCABULARY - 16, (n,), generator=generator).tolist() for n in _LENGTHS]
    return [*made, [*made[1][:18], 5, 6], made[2]]


def check_model(model_type: str, model: PreTrainedModel) -> Finding:
    """Compare the engine's greedy tokens with ``generate()`` under several schedules."""
    reference, asked = copy.deepcopy(model), prompts()
    try:
        expected = [generate(reference, prompt, NEW_TOKENS) for prompt in asked]
    except Exception as error:
        return Finding(model_type, "not built", _line("generate() fails", error))
    for settings, schedules in _SCHEDULES:
        try:
            engine = Engine(model, block_size=4, dtype="float32", max_model_len=64, **settings)
        except (UnsupportedModelError, EngineStartError) as error:
            untried = getattr(error, "untried", False)
            return Finding(model_type, "not built" if untried else "refused", _reason(error))
        with engine:
            for knobs in schedules:
                problem = _compare(engine, knobs, reference, asked, expected)
                if problem:
                    return Finding(model_type, "wrong", f"{settings | knobs}: {problem}")
    return Finding(model_type, "equal")


def _compare(
    engine: Engine, knobs: dict[str, Any], reference: PreTrainedModel, asked: list[list[int]], expected: list[list[int]]
) -> str:
    """What is wrong with the engine's tokens, or ""."""
    engine.set_knobs(**knobs)
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    streams = [engine.submit(prompt, params) for prompt in asked]
    try:
        for prompt, right, stream in zip(asked, expected, streams, strict=True):
            stream.result(60)
            assert stream.error is None, stream.error
            if stream.token_ids != right:
                assert_greedy(reference, prompt, stream.token_ids)
                assert_same_until_a_tie(reference, prompt, stream.token_ids, right)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""


def _reason(error: Exception) -> str:
    """The reason for a refusal, without the model's name before it."""
    return str(error).split(" cannot be served: ", 1)[-1]


def _line(what: str, error: Exception) -> str:
    return f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())[:160]}"
