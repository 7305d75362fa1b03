"""What a tab learns about a KV block: every tab gets the numbers, only the tab whose requests wrote it the text."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from roseplay.config import SamplingParams
from roseplay.engine.messages import BlockInfo
from roseplay.engine.records import BlockChange
from roseplay.engine.stream import Stream
from roseplay.play.playground import Playground
from roseplay.play.web.engine_routes import engine_router
from tests.play.conftest import client_of_routes
from tests.play.fake_engine import FakeEngine

MINE, YOURS = "tab-of-mine", "tab-of-yours"
LONG = SamplingParams(max_new_tokens=50)


@pytest.fixture
def client(playground: Playground) -> TestClient:
    return client_of_routes(engine_router(playground))


def hold(engine: FakeEngine, block: int, holders: list[int]) -> None:
    state = "shared" if len(holders) > 1 else "active" if holders else "cached"
    engine.blocks[block] = BlockInfo(block, state, holders, 2, [7, 8, 9], 41, True)


def tell(engine: FakeEngine, playground: Playground, *changes: BlockChange) -> None:
    """Report a block's new states to the page, one per step, in one frame."""
    engine.submit([1], LONG)
    for change in changes:
        engine.next_step["block_changes"] = [change]
        engine.step()
    playground.tick()


def test_a_block_says_who_holds_it(engine: FakeEngine, playground: Playground, client: TestClient) -> None:
    (mine,) = playground.chats.send("hello", lanes=[1], tab_id=MINE, params=LONG)
    hold(engine, 5, [mine])
    answer = client.get(f"/ui/block/5?tab={MINE}")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "block": 5, "state": "active", "holders": [mine], "depth": 2, "tokens": 3, "text": "7 8 9", "last_use": 41,
        "findable": True,
    }  # fmt: skip


def test_text_is_for_the_tab_that_sent_it(engine: FakeEngine, playground: Playground) -> None:
    (mine,) = playground.chats.send("hello", lanes=[1], tab_id=MINE, params=LONG)
    (yours,) = playground.chats.send("hello", lanes=[1], tab_id=YOURS, params=LONG)
    program = playground.chats.ask("hello", LONG).request_id
    for block, holders in ((1, [mine]), (2, [yours, mine]), (3, [yours]), (4, [program])):
        hold(engine, block, holders)
    read = {tab: [playground.block(n, tab)["text"] is not None for n in (1, 2, 3, 4)] for tab in (MINE, YOURS, "")}
    assert read == {MINE: [True, True, False, False], YOURS: [False, True, True, False], "": [False] * 4}
    assert playground.block(3, MINE)["tokens"] == 3


def test_a_cached_block_stays_its_tabs(engine: FakeEngine, playground: Playground) -> None:
    (mine,) = playground.chats.send("hello", lanes=[1], tab_id=MINE, params=LONG)
    hold(engine, 6, [])
    tell(engine, playground, BlockChange(6, 1, mine, True))
    tell(engine, playground, BlockChange(6, 0, -1, True))
    assert playground.block(6, MINE)["text"] == "7 8 9"
    assert playground.block(6, YOURS)["text"] is None
    tell(engine, playground, BlockChange(6, 0, -1, False))
    assert playground.block(6, MINE)["text"] is None, "it has been dropped"


def test_a_block_that_was_held_and_left_within_a_frame_stays_its_tabs(
    engine: FakeEngine, playground: Playground
) -> None:
    (mine,) = playground.chats.send("hello", lanes=[1], tab_id=MINE, params=LONG)
    hold(engine, 6, [])
    tell(engine, playground, BlockChange(6, 1, mine, True), BlockChange(6, 0, -1, True))
    assert playground.block(6, MINE)["text"] == "7 8 9"


def test_a_block_of_a_request_that_is_computed_before_it_is_registered() -> None:
    class Eager(FakeEngine):
        def submit(self, *args: Any, **options: Any) -> Stream:
            stream = super().submit(*args, **options)
            if not self.blocks:
                self.next_step["block_changes"] = [BlockChange(6, 1, stream.request_id, True)]
                self.step()
                playground.tick()
            return stream

    engine = Eager()
    playground = Playground(engine)
    playground.chats.send("hello", lanes=[1], tab_id=MINE, params=LONG)
    playground.tick()
    hold(engine, 6, [])
    tell(engine, playground, BlockChange(6, 0, -1, True))
    assert playground.block(6, MINE)["text"] == "7 8 9"
    assert playground.block(6, YOURS)["text"] is None


def test_blocks_that_cannot_be_told(engine: FakeEngine, client: TestClient) -> None:
    assert client.get("/ui/block/7").json()["state"] == "free"
    for number in (0, 449, -1):
        answer = client.get(f"/ui/block/{number}")
        assert (answer.status_code, "numbered 1 to 448" in answer.json()["detail"]) == (404, True)
    assert client.get("/ui/block/one").status_code == 422
    engine.close()
    assert client.get("/ui/block/7").status_code == 503


def test_an_engine_that_is_too_busy_to_tell_is_503() -> None:
    class Busy(FakeEngine):
        def inspect_block(self, block: int, timeout: float = 10.0) -> BlockInfo:
            raise TimeoutError(f"the engine did not answer within {timeout} s")

    assert client_of_routes(engine_router(Playground(Busy()))).get("/ui/block/7").status_code == 503
