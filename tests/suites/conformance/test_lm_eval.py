"""lm-eval computes equal log-likelihoods with this server and with transformers: an independent check of numerics."""

# ruff: noqa: E402

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

lm_eval = pytest.importorskip("lm_eval", reason="make conformance installs it")
from lm_eval.tasks import TaskManager

from roseplay.config import EngineConfig
from roseplay.engine.client import Engine
from roseplay.model.source import embedded_model
from tests.serve.conftest import serving

pytestmark = pytest.mark.slow

QUESTIONS = [
    ("What is a KV cache?", ["It keeps keys and values.", "It is a kind of bread.", "Für Käse, 好吗?"]),
    ("What is TTFT?", ["The time to the first token.", "A city on a river."]),
    ("Tell me a story about a fox.", ["Once there was a fox who liked the rain.", "No.", " "]),
    ("Why do requests wait?", ["Because the batch is full.", "Because of the weather, mostly, and of the moon."]),
    ("x", ["y", "a long answer " * 20]),
]
TASK = """
task: roseplay_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{questions}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""


def test_log_likelihoods_equal_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = tmp_path / "questions.jsonl"
    lines = [json.dumps({"question": question, "choices": choices}) for question, choices in QUESTIONS]
    questions.write_text("\n".join(lines))
    (tmp_path / "task.yaml").write_text(TASK.format(questions=questions))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "none")
    model = str(embedded_model())
    config = EngineConfig(worker="thread", threads=1, num_blocks=400, dtype="float32")
    with Engine("tiny-chat", config=config) as engine, serving(engine) as address:
        ours = evaluate(
            tmp_path, "local-completions",
            f"model=tiny-chat,base_url={address}/v1/completions,tokenizer={model},num_concurrent=4,max_retries=1",
        )  # fmt: skip
        assert engine.telemetry.next_cursor > 0
    theirs = evaluate(tmp_path, "hf", f"pretrained={model},dtype=float32,device=cpu")
    assert len(ours) == len(theirs) == sum(len(choices) for _, choices in QUESTIONS)
    for (mine, my_greedy), (its, its_greedy) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(its, abs=2e-3)
        assert my_greedy == its_greedy


def evaluate(folder: Path, model: str, arguments: str) -> list[tuple[float, bool]]:
    """Returns each answer's log-likelihood, and whether greedy decoding would give it."""
    found: Any = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=["roseplay_choices"], batch_size=1, log_samples=True,
        task_manager=TaskManager(include_path=str(folder)), bootstrap_iters=0,
    )  # fmt: skip
    samples = sorted(found["samples"]["roseplay_choices"], key=lambda sample: sample["doc_id"])
    return [(float(part[0]), part[1] in (True, "True")) for sample in samples for part in sample["filtered_resps"]]
