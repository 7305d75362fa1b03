"""KV cache events as vLLM and SGLang publish them: which blocks entered a prefix cache, and which left it.

A batch is msgpack. Newer versions write maps whose events are tagged by ``type``, older ones arrays that begin with the
event's name, and some an array of maps. Readers accept any mixture of these, and ignore unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from roseplay.wire.extra import WireError, msgspec

BlockHash = int | bytes  # integers in SGLang and older versions of vLLM, digests in newer ones


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    """Full, consecutive blocks of a prompt were added to the cache.

    Fields without a default are always written, since vLLM's own readers require them.

    Attributes:
        parent_block_hash: hash of the block before the first; None at a prompt's beginning.
        token_ids: tokens of all blocks; pairs if drafts for speculative decoding are cached by pairs of tokens.
        medium: where the blocks are stored, such as ``GPU`` or ``CPU``.
        group_idx: the KV cache group, for models whose layers have different caches.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int | tuple[int, ...]]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, frozen=True):
    """Blocks were removed from the cache."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True):
    """All blocks were removed from the cache."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(msgspec.Struct, omit_defaults=True, frozen=True):
    """The changes of one step, in order; ``ts`` is in seconds since 1970."""

    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


class DecodedBatch(NamedTuple):
    """A batch with the events that could be read, and for each of the others a description of its problem."""

    batch: KvEventBatch
    skipped: list[str]


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)}
_NAMES = {name: kind.__struct_fields__ for name, kind in _KINDS.items()}
_BATCH = KvEventBatch.__struct_fields__
_NULLABLE = dict.fromkeys(("parent_block_hash", "lora_id", "medium", "lora_name"))  # absent in some versions
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode_kv_events(batch: KvEventBatch, *, array_like: bool = False) -> bytes:
    """Returns a batch as maps, or as the arrays of older versions."""
    if not array_like:
        return _encoder.encode(batch)
    events = [[type(event).__name__, *msgspec.structs.astuple(event)] for event in batch.events]
    return _encoder.encode([batch.ts, events, batch.data_parallel_rank])


def decode_kv_events(payload: bytes) -> DecodedBatch:
    """Read a batch of either form, skipping events that cannot be read.

    Raises:
        WireError: it is not a batch at all.
    """
    fields = _named(unpack(payload), _BATCH, "a KV event batch")
    events = fields.get("events")
    if not isinstance(events, list):
        raise WireError("a KV event batch has no list of events")
    batch = converted({**fields, "events": []}, KvEventBatch)
    read: list[KvEvent] = []
    skipped = []
    for event in events:
        try:
            read.append(_event(event))
        except WireError as error:
            skipped.append(str(error))
    return DecodedBatch(msgspec.structs.replace(batch, events=read), skipped)


def unpack(payload: bytes) -> Any:
    """Decode msgpack; raises ``WireError`` if it is invalid."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise WireError("a message is not msgpack") from None


def _event(value: Any) -> KvEvent:
    """Returns one event, an array with its name first or a map with its name as ``type``."""
    tag = value[0] if isinstance(value, list) and value else value.get("type") if isinstance(value, dict) else None
    if not isinstance(tag, str) or tag not in _KINDS:
        raise WireError(f"unknown KV event {str(tag)[:40]!r}")
    fields = _named(value[1:] if isinstance(value, list) else value, _NAMES[tag], tag)
    event: KvEvent = converted({**_NULLABLE, **fields, "type": tag}, _KINDS[tag])
    return event


def _named(value: Any, names: tuple[str, ...], what: str) -> Mapping[Any, Any]:
    """Returns the fields of an array or a map by name; an array may have more or fewer."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return dict(zip(names, value, strict=False))
    raise WireError(f"{what} is neither an array nor a map")


def converted(fields: Mapping[Any, Any], kind: Any) -> Any:
    """Returns a message of this kind with these fields; raises ``WireError`` for wrong ones."""
    try:
        return msgspec.convert(fields, kind, builtin_types=(bytes,))
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        raise WireError(f"{kind.__name__}: {str(error)[:200]}") from None
