"""A page that replays a recording, without an engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from roseplay.config import SamplingParams
from roseplay.play.main import main
from roseplay.play.options import parse
from roseplay.play.playground import Playground
from roseplay.play.replay_server import ReplayServer
from roseplay.recording.recorded_engine import NO_ENGINE
from tests.play.conftest import connect
from tests.play.fake_engine import FakeEngine
from tests.recording.test_recording import MINE, run, send

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(engine: FakeEngine, playground: Playground, tmp_path: Path) -> Path:
    playground.set_knobs({"max_batch_size": 7})
    send(playground, MINE, "Why?", tokens=5)
    run(engine, playground)
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(playground.recording(MINE)))
    return path


def test_it_has_what_was_recorded_and_no_playground(file: Path, playground: Playground) -> None:
    replay = ReplayServer(file)
    assert replay.replaying == "run.jsonl"
    assert playground.replaying is None
    assert replay.engine.info == playground.engine.info
    assert replay.knobs()["max_batch_size"] == 32  # as at the beginning
    assert b"".join(replay.recording()) == file.read_bytes()
    assert replay.recorded() == {**playground.recorded(), "bytes": file.stat().st_size}
    with pytest.raises(ValueError, match="has no engine"):
        replay.chats.send("Hello", lanes=[1], tab_id=MINE)
    with pytest.raises(ValueError, match="has no engine"):
        replay.chats.ask("Hello", SamplingParams())
    with pytest.raises(ValueError, match="has no engine"):
        replay.set_knobs({"max_batch_size": 4})
    with pytest.raises(ValueError, match="has no engine"):
        replay.playground


def test_a_replay_is_served_without_torch(file: Path) -> None:
    """The real program in its own process: the page, the recording, refusals, and no heavy module loaded."""
    script = (
        "import sys, threading, time\nfrom roseplay.play.main import main\n"
        f"code = main(['--replay', {str(file)!r}, '--port', '0'])\n"
        "heavy = {'torch', 'transformers', 'roseplay.engine.client', 'roseplay.model.runner'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy), code, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.fullmatch(rf"roseplay is replaying {re.escape(str(file))} at (http://\S+)\n", said)
        assert address, said
        page = address[1]
        assert '"recording": "run.jsonl"' in httpx.get(page).text
        assert httpx.get(f"{page}/ui/recording").content == file.read_bytes()
        assert httpx.get(f"{page}/ui/export/recording.jsonl").content == file.read_bytes()
        assert httpx.get(f"{page}/ui/export").json()["tokens"] == 5
        health = httpx.get(f"{page}/health").json()
        assert (health["status"], health["model"]) == ("ok", "fake-chat")
        assert httpx.get(f"{page}/ui/delta").json()["health"] is None
        assert httpx.get(f"{page}/ui/block/3").status_code == 404
        refused = httpx.post(f"{page}/ui/traffic/play", params={"tab": MINE}, content=b"at_s,prompt\n0,Hi\n")
        assert (refused.status_code, refused.json()["detail"]) == (422, NO_ENGINE)
        assert httpx.get(f"{page}/ui/delta").json()["snapshot"]["info"]["model"] == "fake-chat"
        client = connect(page)
        for endpoint in ("/burst", "/chat", "/submit", "/stop"):
            with pytest.raises(Exception, match="replays a recording and has no engine"):
                client.predict(api_name=endpoint)
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert rest == "heavy: [] 0\n"


def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("some notes\n")
    for path, words in ((foreign, "not a recording of roseplay"), (tmp_path / "gone.jsonl", "cannot be read")):
        assert main(["--replay", str(path), "--port", "0"]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert words in told
        assert path.name in told


@pytest.mark.parametrize("flag", ["--model gpt2", "--record x.jsonl", "--max-batch-size 4", "--num-blocks 99"])
def test_a_replay_takes_no_flags_of_an_engine(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--replay", "run.jsonl", *flag.split()])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"leave out {flag.split()[0]}" in told


def test_a_recording_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "run.jsonl"
    there.write_text("something dear")
    assert main(["--record", str(there), "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "exists already" in told
    assert there.read_text() == "something dear"
