"""Several streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from roseplay.engine.stream import Chunk, Stream


async def merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Chunk | None]]:
    """Yields the chunks of all streams as they arrive, each with its stream's place, and each stream's end as None."""
    if len(streams) == 1:  # by far the most frequent case: no task and no queue in between
        async for only in streams[0]:
            yield 0, only
        yield 0, None
        return
    arrived: asyncio.Queue[tuple[int, Chunk | None]] = asyncio.Queue()

    async def follow(number: int, stream: Stream) -> None:
        async for chunk in stream:
            arrived.put_nowait((number, chunk))
        arrived.put_nowait((number, None))

    tasks = [asyncio.ensure_future(follow(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            number, chunk = await arrived.get()
            left -= chunk is None
            yield number, chunk
    finally:
        for task in tasks:
            task.cancel()
