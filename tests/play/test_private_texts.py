"""What a tab learns about KV blocks and about why a prompt was not cached: every tab gets the numbers, only the tab that
sent a text reads it, and no tab learns what others sent.
"""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from roseplay.config import SamplingParams
from roseplay.core.cache_miss import Miss, MissReason
from roseplay.engine.messages import BlockInfo
from roseplay.engine.records import BlockChange
from roseplay.engine.stream import Stream
from roseplay.play.playground import Playground
from roseplay.play.web.engine_routes import engine_router
from roseplay.recording import exports
from roseplay.recording.reader import parse
from roseplay.recording.recorded_run import RecordedRun
from tests.play.conftest import client_of_routes, poll
from tests.play.fake_engine import FakeEngine

MINE, YOURS = "tab-of-mine", "tab-of-yours"
LONG = SamplingParams(max_new_tokens=50)


@pytest.fixture
def client(playground: Playground) -> TestClient:
    return client_of_routes(engine_router(playground))


def lane(playground: Playground, number: int, tab: str = MINE) -> int:
    (rid,) = playground.chats.send("hello you", lanes=[number], tab_id=tab, params=LONG)
    return rid


# -- blocks


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
    mine = lane(playground, 1)
    hold(engine, 5, [mine])
    answer = client.get(f"/ui/block/5?tab={MINE}")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "block": 5, "state": "active", "holders": [mine], "depth": 2, "tokens": 3, "text": "7 8 9", "last_use": 41,
        "findable": True,
    }  # fmt: skip


def test_the_text_of_a_block_is_for_its_tab(engine: FakeEngine, playground: Playground) -> None:
    mine = lane(playground, 1)
    yours = lane(playground, 1, YOURS)
    program = playground.chats.ask("hello", LONG).request_id
    for block, holders in ((1, [mine]), (2, [yours, mine]), (3, [yours]), (4, [program])):
        hold(engine, block, holders)
    read = {tab: [playground.block(n, tab)["text"] is not None for n in (1, 2, 3, 4)] for tab in (MINE, YOURS, "")}
    assert read == {MINE: [True, True, False, False], YOURS: [False, True, True, False], "": [False] * 4}
    assert playground.block(3, MINE)["tokens"] == 3


def test_a_cached_block_stays_its_tabs(engine: FakeEngine, playground: Playground) -> None:
    mine = lane(playground, 1)
    hold(engine, 6, [])
    tell(engine, playground, BlockChange(6, 1, mine, True))
    tell(engine, playground, BlockChange(6, 0, -1, True))
    assert playground.block(6, MINE)["text"] == "7 8 9"
    assert playground.block(6, YOURS)["text"] is None
    tell(engine, playground, BlockChange(6, 0, -1, False))
    assert playground.block(6, MINE)["text"] is None, "it has been dropped"
    tell(engine, playground, BlockChange(6, 1, mine, True), BlockChange(6, 0, -1, True))
    assert playground.block(6, MINE)["text"] == "7 8 9", "it was held and left within a frame"


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
    lane(playground, 1)
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


# -- prompts


def miss(engine: FakeEngine, rid: int, by: int = -1, reason: MissReason = MissReason.DIFFERS, **more: Any) -> None:
    """Make the engine report why part of a request's prompt was not cached."""
    engine.streams[rid].miss = Miss(reason, 4, 6, by, tokens=(70, 71), **more)


def events(playground: Playground) -> dict[int, Any]:
    """What the shared frames say about first tokens."""
    firsts = [event for frame in poll(playground)["frames"] for event in frame["requests"] if event[1] == "first"]
    return {rid: about.get("miss") for rid, _, _, about in firsts}


def test_the_reason_comes_with_the_first_token(engine: FakeEngine, playground: Playground) -> None:
    first, second, third = (lane(playground, number) for number in (1, 2, 3))
    miss(engine, second, first)
    miss(engine, third, reason=MissReason.EVICTED, step_id=12)
    engine.step()
    playground.tick()
    assert events(playground) == {
        first: None,
        second: {"reason": "differs", "found": 4, "position": 6, "request": first, "step": None},
        third: {"reason": "evicted", "found": 4, "position": 6, "request": None, "step": 12},
    }
    requests = dict(poll(playground)["snapshot"]["requests"])
    assert requests[second]["miss"]["position"] == 6, "a page that is opened later learns the same"


def test_where_it_differs_from_anothers_prompt_nobody_learns(engine: FakeEngine, playground: Playground) -> None:
    """Otherwise, another prompt could be guessed token by token."""
    yours = lane(playground, 1, YOURS)
    program = playground.chats.ask("hello", LONG).request_id
    mine = [lane(playground, number) for number in (1, 2)]
    miss(engine, mine[0], yours)
    miss(engine, mine[1], program)
    miss(engine, program, yours)
    engine.step()
    playground.tick()
    told = events(playground)
    for rid in (*mine, program):
        assert (told[rid]["position"], told[rid]["request"]) == (None, None)
        assert told[rid]["found"] == 4
    for rid in mine:
        answer = playground.prompt(rid, MINE)
        assert (answer["nearest"], answer["miss"]["position"], answer["text"]["differs"]) == (None, None, "")
    assert "70" not in json.dumps(playground.prompt(mine[0], MINE)["nearest"])


def test_the_text_of_a_prompt_is_for_its_tab(engine: FakeEngine, playground: Playground, client: TestClient) -> None:
    first, second = lane(playground, 3), lane(playground, 4)
    miss(engine, second, first)
    answer = client.get(f"/ui/prompt/{second}?tab={MINE}")
    assert answer.headers["cache-control"] == "no-store"
    ids = [str(token) for token in engine.streams[second].prompt_token_ids]
    told = answer.json()
    assert told["nearest"] == {"lane": 3, "text": "70 71"}
    text = told["text"]
    parts = [text[name] for name in ("found", "same", "differs", "rest")]
    assert "".join(parts).split() == ids, "the parts add up to the whole prompt"
    assert (parts[0].split(), parts[1].split(), parts[2].split()) == (ids[:4], ids[4:6], ids[6:7])
    for tab in (YOURS, ""):
        told = client.get(f"/ui/prompt/{second}?tab={tab}").json()
        assert (told["text"], told["nearest"], told["miss"]["reason"]) == (None, None, "differs")


def test_only_lanes_are_quoted(engine: FakeEngine, playground: Playground) -> None:
    burst = playground.traffic.burst(size=1, kind="equal", max_new_tokens=4, seed=3, tab_id=MINE)
    by = burst.requests[0].request_id
    mine = lane(playground, 1)
    miss(engine, mine, by)
    told = playground.prompt(mine, MINE)
    assert (told["nearest"], told["miss"]["position"]) == (None, 6)


def test_a_recording_says_why_as_well(engine: FakeEngine, playground: Playground) -> None:
    first, second = (lane(playground, number) for number in (1, 2))
    miss(engine, second, first)
    engine.step()
    playground.tick()
    lines = list(playground.recording(MINE))
    requests = RecordedRun(parse(lines, "run.jsonl")).requests
    assert requests[first].miss is None
    assert requests[second].miss == {"reason": "differs", "found": 4, "position": 6, "request": first, "step": None}
    table = csv.DictReader(exports.export("requests", lines).decode().splitlines())
    assert [row["miss"] for row in table] == ["", "differs"]


def test_a_long_prompt_is_cut_at_both_ends(engine: FakeEngine, playground: Playground) -> None:
    mine = lane(playground, 1)
    stream = engine.streams[mine]
    stream.prompt_token_ids = list(range(1000, 2000))
    stream.miss = Miss(MissReason.DIFFERS, 400, 405, mine)
    text = playground.prompt(mine, MINE)["text"]
    assert text["cut"] == [240, 515]
    assert text["found"].split()[0] == "1240"
    assert text["differs"].split() == ["1405"]
    assert text["rest"].split()[-1] == "1484"


def test_what_is_gone_is_said_to_be(engine: FakeEngine, playground: Playground, client: TestClient) -> None:
    assert client.get("/ui/prompt/99").status_code == 404
    assert "ended too long ago" in client.get("/ui/prompt/99").json()["detail"]
    assert client.get("/ui/prompt/one").status_code == 422
    mine = lane(playground, 1)
    playground.requests.registry.forget(2**62)
    engine.abort(mine)
    playground.requests.registry.forget(2**62)
    assert client.get(f"/ui/prompt/{mine}?tab={YOURS}").status_code == 404
    assert client.get(f"/ui/prompt/{mine}?tab={MINE}").json()["text"], "its lane still has it"


def test_the_nearest_may_have_gone(engine: FakeEngine, playground: Playground) -> None:
    first, second = lane(playground, 1), lane(playground, 2)
    engine.abort(first)
    playground.requests.registry.forget(2**62)
    miss(engine, second, first)
    assert playground.prompt(second, MINE)["nearest"] == {"lane": 1, "text": "70 71"}
