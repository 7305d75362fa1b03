"""Every class that can stand in for an engine has all of ``EngineLike``; mypy checks this file with the product."""

from __future__ import annotations

from roseplay.engine.client import Engine
from roseplay.engine.engine_like import EngineLike
from roseplay.recording.recorded_engine import RecordedEngine
from tests.play.fake_engine import FakeEngine


def all_of_them(engine: Engine, recording: RecordedEngine, fake: FakeEngine) -> list[EngineLike]:
    return [engine, recording, fake]
