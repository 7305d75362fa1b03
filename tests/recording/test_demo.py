"""The bundled recording shows what its tab promises."""

from __future__ import annotations

import pytest

from roseplay.formats.segments import plain
from roseplay.recording.reader import Recording, demo_path, read
from roseplay.recording.recorded_run import RecordedRun


@pytest.fixture(scope="module")
def recording() -> Recording:
    path = demo_path()
    assert path.stat().st_size < 1_000_000
    return read(path)


def test_it_is_whole_and_names_nobody(recording: Recording) -> None:
    assert not recording.cut
    assert recording.info.model == "SmolLM2-135M-Instruct"
    assert set(recording.header["environment"]) == {
        "roseplay", "python", "torch", "transformers", "system", "cpu", "cores", "threads", "device", "device_name",
    }  # fmt: skip


def test_a_smaller_budget_takes_the_spike_away(recording: Recording) -> None:
    run = RecordedRun(recording)
    lowered, _restored = [t for t, _, changes in run.changes if "prefill_max_tokens" in changes]
    prompts = {True: [0], False: [0]}
    for step in run.steps:
        prompts[step.t0 < lowered].append(step.prompt_tokens)
    assert max(prompts[True]) > 500
    assert max(prompts[False]) <= 64
    bursts = [[r for r in run.requests.values() if r.burst == number] for number in (1, 2)]
    assert [len(burst) for burst in bursts] == [20, 20]
    assert max(r.submitted for r in bursts[0]) < lowered < min(r.submitted for r in bursts[1])


def test_its_lanes_have_words_and_its_captions_figures(recording: Recording) -> None:
    run = RecordedRun(recording)
    lanes = [request for request in run.requests.values() if request.kind == "lane"]
    assert {request.lane for request in lanes} == {1, 2, 3, 4}
    finished = [request for request in lanes if request.reason == "stop"]
    assert finished
    assert all(request.title and len("".join(request.texts.values())) > 20 for request in finished)
    demos = [frame["demo"] for frame in recording.frames if frame.get("demo")]
    assert demos[-1] == {"over": True}
    by_scene = {one["scene"]: one for one in demos[:-1]}
    assert list(by_scene) == list(range(demos[0]["scenes"]))
    pause, last = (plain(by_scene[scene]["caption"]) for scene in (2, demos[0]["scenes"] - 1))
    gaps = {f"{gap:.0f}" for _, _, gap in run.gaps()}
    rings = [ring["label"] for ring in by_scene[2]["rings"]]
    assert rings[0].removeprefix("a pause of ").removesuffix(" ms") in gaps
    assert "4 readers waited for the step" in pause
    assert "The price" in last
