"""Record demo.jsonl: the guided demo "Burst and budget" with its captions, as the page plays it with SmolLM2.

Run it from the repository on a quiet machine: the figures in the recording, and in its captions, are those of the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from pathlib import Path

from roseplay import Engine
from roseplay.config import EngineConfig
from roseplay.formats.segments import plain
from roseplay.own_models import SMOLLM2, defaults_for
from roseplay.play.playground import Playground
from roseplay.recording.reader import Recording, read

TAB = "recorded-demo"
LIMIT_S = 180.0
GUESS, QUESTION_S = 2, 5.0  # the chosen answer, and how long its question is shown


def record(file: Path) -> None:
    """Play the demo into a new file."""
    config = EngineConfig(**defaults_for(SMOLLM2, watched=True))
    with (
        closing(Engine(SMOLLM2, config=config)) as engine,
        closing(Playground(engine, record=str(file))) as playground,
    ):
        playground.start()
        playground.start_demo("budget", TAB)
        begun = time.monotonic()
        guessed = False
        while playground.demos.status():
            passed_s = time.monotonic() - begun
            guessed = guessed or (passed_s > QUESTION_S and playground.demos.next(TAB, GUESS))
            if passed_s > LIMIT_S:
                raise TimeoutError("the demo did not end")
            time.sleep(0.1)
        time.sleep(2.5)  # until the rate of tokens has come down to nothing


def captions(recording: Recording) -> list[str]:
    shown = (frame.get("demo") or {} for frame in recording.frames)
    return [plain(one["caption"]) for one in shown if one.get("caption")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("demo.jsonl"))
    file: Path = parser.parse_args().file
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    record(new)
    recording = read(new)
    new.replace(file)
    steps = [step for frame in recording.frames for step in frame["steps"]]
    print(f"{file}: {file.stat().st_size:,} bytes, {len(steps)} steps over {(steps[-1].t1 - steps[0].t0) / 1000:.1f} s")
    print(*captions(recording), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
