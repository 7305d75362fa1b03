"""Tests of vLLM's own that do not pass, with the reason, and whether that is sure: some depend on what the model draws."""

from __future__ import annotations

from collections.abc import Iterator

_LORA = "LoRA adapters are not implemented"
_MODEL = "it expects the text or the tokens of another model"
_DRAWN = "it depends on what a small model draws"
_UNENDING = "it has no max_tokens: up to 8,192 tokens of a small model take longer than a test may"
_FLAG = "it starts vLLM with a flag that roseplay does not have"
_WORDS = "it expects vLLM's words in the message of an error"
_TOOLS = "tools are not implemented"
_COUNTS = "it counts from the start of a server of its own, and equal prompts compute nothing here"
_CHAT, _COMPLETION = "test_chat", "test_completion"
_SMOLLM2, _ZEPHYR = "HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceH4/zephyr-7b-beta"

# By file, and without "test_".
_SURE: dict[str, dict[str, str]] = {
    _CHAT: {
        **{
            f"{name}[zephyr-lora]": _LORA
            for name in (
                "no_logprobs_chat",
                "zero_logprobs_chat",
                "some_logprobs_chat",
                "too_many_chat_logprobs",
                "single_chat_session",
                "chat_streaming",
                "chat_completion_stream_options",
            )
        },
        f"more_than_one_prompt_logprobs_chat[{_ZEPHYR}]": _MODEL,
        f"single_chat_session[{_ZEPHYR}]": _MODEL,
        "complex_message_content": _MODEL,
        "response_format_json_object": _MODEL,
        "long_seed": _WORDS,
        "invocations": "/invocations, a route of SageMaker's, is not served",
    },
    "test_chat_echo": {"prompt_logprobs": f"{_FLAG}: --max-logprobs", "top_logprobs": f"{_FLAG}: --max-logprobs"},
    _COMPLETION: {
        "single_completion[facebook/opt-125m]": _MODEL,
        "completion_streaming[facebook/opt-125m]": _MODEL,
        "batch_completions[facebook/opt-125m]": "beam search is not implemented",
    },
    "test_prompt_validation": {"empty_prompt": _WORDS},
    "test_models": {"check_models": _LORA},
    "test_return_token_ids": {
        "chat_completion_with_tool_use": _TOOLS,
        "comparison_with_prompt_logprobs_and_logprobs": _MODEL,
    },
    "test_return_tokens_as_ids": {
        "completion_return_tokens_as_token_ids_completion[True]": f"{_FLAG}: --return-tokens-as-token-ids",
        "chat_return_tokens_as_token_ids_completion[True]": f"{_FLAG}: --return-tokens-as-token-ids",
    },
    "test_tokenization": {f"tokenize_chat_with_tools[{_SMOLLM2}-{_SMOLLM2}]": _TOOLS},
    "test_basic": {
        "show_version": "the version is roseplay's",
        "request_cancellation[server_args0]": "it needs a context of 10,100 tokens, the model has 8,192",
    },
    "test_metrics": {"metrics_counts[-text]": _COUNTS, "metrics_counts[--enable-chunked-prefill-text]": _COUNTS},
}
_MAYBE: dict[str, dict[str, str]] = {
    _CHAT: {
        "custom_role": _UNENDING,
        "structured_outputs_choice_chat": _DRAWN,
        "structured_outputs_json_chat": _DRAWN,
        "structured_outputs_regex_chat": _DRAWN,
        "response_format_json_schema": _UNENDING,
    },
    "test_chat_echo": {
        f"chat_session_with_echo_and_continue_final_message[test_case{number}]": _UNENDING for number in range(2)
    },
    "test_batched_chat_completions": {
        f"batched_chat_completions{what}[Qwen/Qwen2.5-1.5B-Instruct]": _UNENDING
        for what in ("", "_logprobs_not_token_id_placeholders", "_return_tokens_as_token_ids")
    },
    "test_return_token_ids": {"chat_completion_with_emoji_and_token_ids": _DRAWN},
}


def _listed(reasons: dict[str, dict[str, str]], sure: bool) -> Iterator[tuple[str, tuple[str, bool]]]:
    for file, names in reasons.items():
        for name, reason in names.items():
            yield f"{file}::test_{name}", (reason, sure)


# By file and name: the reason, and whether the test never passes.
EXPECTED = dict([*_listed(_SURE, True), *_listed(_MAYBE, False)])
