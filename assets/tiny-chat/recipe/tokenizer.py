"""The byte-level BPE tokenizer: learned from the corpus, it writes any UTF-8 text back exactly as it was."""

from collections.abc import Iterable

from corpus.conversations import Conversation
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
CONTEXT = 2048
PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|endoftext|>"
END = "<|end|>"  # ends every message; EOS ends a text without a chat around it
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
_SPECIAL = [PAD, BOS, EOS, END, *ROLES.values()]

# The template writes BOS, the tokenizer never adds it: so it cannot come twice.
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['system', 'developer'] -%}{{- '<|system|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|assistant|>' -}}"
    "{%- else -%}{{- '<|user|>' -}}{%- endif -%}"
    "{{- message['content'] | trim + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
# A word with the space before it, a single digit, other signs, white space: no pattern drops a character.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn a vocabulary of `VOCABULARY` tokens from texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        additional_special_tokens=[EOS, *ROLES.values()],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def texts_of(sample: Conversation | str) -> list[str]:
    """Return the plain texts in a sample."""
    return [sample] if isinstance(sample, str) else [message["content"] for message in sample]
