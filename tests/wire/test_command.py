"""``roseplay import``: its output can be replayed, and each refusal is explained in one line."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from roseplay.cli import main
from roseplay.engine.client import Engine
from roseplay.play.replay_server import ReplayServer
from roseplay.recording.reader import read
from roseplay.wire.publishers import Publishers
from roseplay.wire.reader import SocketReader
from tests.wire.common import envelope, step, traffic, written


def test_a_file_becomes_a_recording_that_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "dynamo-fpm.1.000000.jsonl.gz", [envelope(step(0.02, 9, 2), 1_782_777_601_250), {}])
    out = tmp_path / "run.jsonl"
    assert main(["import", str(source), "--out", str(out), "--name", "theirs"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}: 1 steps, at most 0 cached blocks, 0.0 s\n"
    assert said.err == "roseplay import: skipped 1 × forward pass metrics are not a map with a version\n"
    assert read(out).info.model == "theirs"
    assert ReplayServer(out).recorded()["steps"] == 1


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "name files, or endpoints"),
        (["x.jsonl", "--kv-events", "tcp://127.0.0.1:1"], "name files, or endpoints"),
        (["--forward-pass", "tcp://127.0.0.1:1", "--kv-replay", "tcp://127.0.0.1:2"], "--kv-replay needs --kv-events"),
        (["missing.jsonl"], "missing.jsonl: No such file or directory"),
        (["--kv-events", "nonsense", "--seconds", "1"], "'nonsense' is not an endpoint"),
        (["--forward-pass", "tcp://127.0.0.1:1", "--seconds", "0.2"], "nothing to show was found"),
        (["--forward-pass", "tcp://127.0.0.1:1", "--seconds", "soon"], "'soon' is not a number of seconds above 0"),
        (["empty.jsonl"], "nothing to show was found"),
        (["empty.jsonl", "--out", "empty.jsonl"], "exists: choose another name"),
    ],
)
def test_what_it_refuses(
    argv: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    try:
        code = main(["import", "--out", "out.jsonl", *argv])
    except SystemExit as exit:  # from the argument parser
        code = int(exit.code or 0)
    assert code == 2
    err = capsys.readouterr().err
    assert why in err
    assert len(err.splitlines()) == 1
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("missing", ["zmq", "msgspec"])
def test_without_the_extra_one_line_says_how_to_get_it(missing: str, tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None  # to import it is an error
from roseplay.cli import main
sys.exit(main(["import", "x.jsonl", "--out", "y.jsonl"]))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == f"roseplay import: {missing} is not installed: pip install 'roseplay[wire]'\n"


def test_the_recording_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import", "x.jsonl"])
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err


def test_every_endpoint_is_listened_to(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs in this process and listens until both endpoints have been heard."""
    traffic(engine, 2)
    out, take = tmp_path / "run.jsonl", SocketReader.read

    def until_heard(reader: SocketReader, seconds: float) -> None:
        deadline = time.monotonic() + 60
        while not (reader.run.steps and reader.run.blocks):
            assert time.monotonic() < deadline
            traffic(engine, 1)
            take(reader, 0.05)

    monkeypatch.setattr(SocketReader, "read", until_heard)
    with Publishers(engine, kv_events_port=0, forward_pass_port=0, worker_id="theirs") as publishers:
        flags = ["--kv-events", publishers.kv.publication.endpoint, "--kv-replay", publishers.kv.replay_endpoint]
        flags += ["--forward-pass", publishers.forward_pass.publication.endpoint, "--out", str(out)]
        assert main(["import", *flags]) == 0
    recording = read(out)
    assert (recording.info.model, recording.info.block_size) == ("theirs", engine.info.block_size)
    assert recording.frames[-1]["t"] > 1  # in milliseconds since the start
    assert ", ".join(flags[1::4]) == recording.header["environment"]["imported"]
    assert capsys.readouterr().out.startswith(f"{out}: ")


def test_ctrl_c_ends_listening_and_keeps_what_was_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds: list[float] = []

    def interrupted(reader: SocketReader, within_s: float) -> None:
        seconds.append(within_s)
        reader.run.take_metrics(0, step(0.02, 9))
        raise KeyboardInterrupt

    monkeypatch.setattr(SocketReader, "read", interrupted)
    for number, more in enumerate(([], ["--seconds", "2.5"], ["--name", "named"])):
        out = tmp_path / f"{number}.jsonl"
        assert main(["import", "--forward-pass", "tcp://127.0.0.1:1", "--out", str(out), *more]) == 0
        assert read(out).info.model == ("named" if "named" in more else "w")
    assert seconds[1] == 2.5 and min(seconds[0], seconds[2]) > 1e6
    assert "1 steps, at most 0 cached blocks, 0.0 s" in capsys.readouterr().out
