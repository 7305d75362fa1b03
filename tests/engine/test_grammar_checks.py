"""Grammars are checked with limits, once for all who wait, and for nobody who left."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from roseplay import Engine, SamplingParams
from roseplay.config import SettingError
from roseplay.engine import grammar_checks
from roseplay.engine.grammar_checks import GrammarChecks
from roseplay.engine.structured import grammars_of
from roseplay.model import grammar
from roseplay.model.grammar import Grammars, backend_of
from tests.waiting import wait_until

# A process that logs what it is asked and answers with its length; never about what contains "slow".
LOGS = """
import json, sys, time
sys.stdin.readline()
for line in sys.stdin:
    with open(sys.argv[1], "a") as log:
        log.write(line)
    while "slow" in line:
        time.sleep(1)
    if "broken" in line:
        sys.exit(1)
    print(json.dumps([len(json.loads(line)), "is bad" if "bad" in line else None]), flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def logging_checks(log: Path, **times: float) -> GrammarChecks:
    return GrammarChecks(None, (sys.executable, "-c", LOGS, str(log)), **times)


@pytest.fixture
def checks(log: Path) -> GrammarChecks:
    return logging_checks(log)


def asked(log: Path) -> list[str]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_grammar_is_checked_once_for_all_who_wait_and_remembered(checks: GrammarChecks, log: Path):
    futures = [checks.start(structure) for structure in ["a"] * 16 + ["bad"] * 3]
    assert [future.result(30) for future in futures[:16]] == [1] * 16
    for future in [*futures[16:], checks.start("bad")]:
        with pytest.raises(SettingError, match="^structured_outputs is bad$"):
            future.result(30)
    assert checks.start("a").result(0) == 1
    assert asked(log) == ["a", "bad"]


def test_nothing_is_checked_for_those_who_left(checks: GrammarChecks, log: Path):
    """What only they wait for is ended, or not begun; who else waits for it keeps it going."""
    slow = [checks.start("slow") for _ in range(2)]
    unwanted, wanted = checks.start("unwanted"), checks.start("wanted")
    wait_until(lambda: asked(log) == ["slow"])
    unwanted.cancel()
    slow[0].cancel()
    assert wait([wanted], timeout=0.3).not_done
    slow[1].cancel()
    assert wanted.result(30) == 6
    assert asked(log) == ["slow", "wanted"]


def test_a_process_that_ends_or_hangs_is_replaced(log: Path):
    checks = logging_checks(log, within_s=1.0)
    for lost in ("broken", "slow"):
        with pytest.raises(SettingError, match="could not be checked in time: try again later"):
            checks.start(lost).result(30)
        assert checks.start(f"a{lost[:2]}").result(30) == 3


def test_an_idle_process_ends_and_another_starts(log: Path):
    checks = logging_checks(log, idle_s=0.05)
    for structure in ("a", "ab"):
        assert checks.start(structure).result(30) == len(structure)
        wait_until(lambda: not checks._runs)


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ("MOST_S, process.MOST_BYTES = 1, 1 << 30", "it takes more than 1 s to"),
        ("MOST_BYTES = 1 << 23", "more than 8 MB to"),
        ("walk = lambda *given: (_ for _ in ()).throw(BaseException('it is out of bounds'))", "it is out of bounds"),
    ],
)
def test_a_grammar_that_takes_too_much_or_fails_ends_only_its_own_check(chat_engine: Engine, limits: str, refusal: str):
    tokenizer, eos = chat_engine.tokenizer, [*chat_engine.info.eos_token_ids]
    program = f"import roseplay.model.grammar_check as process; process.{limits}; process.main()"
    checks = GrammarChecks(backend_of(tokenizer, 1, eos), (sys.executable, "-c", program))
    number = 997 if "walk" in limits else 999983
    refused = checks.start(json.dumps({"json": {"type": "integer", "multipleOf": number}}))
    with pytest.raises(SettingError, match=refusal):
        refused.result(60)
    if "walk" not in limits:
        assert checks.start(json.dumps({"regex": "[ab]+"})).result(30) < 1 << 23


def test_equal_requests_compile_their_grammar_once(chat_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    compiled, compile_grammar = [], grammar.compile_grammar
    monkeypatch.setattr(grammar, "compile_grammar", lambda *given: compiled.append(given[1]) or compile_grammar(*given))
    params = SamplingParams(structured_outputs={"choice": ["once"]})
    assert {stream.result(60).text for stream in [chat_engine.submit("Hi", params) for _ in range(16)]} == {"once"}
    assert compiled == [params.structured_outputs]


def test_an_aborted_request_s_grammar_is_not_compiled(chat_engine: Engine):
    grammars = grammars_of("tiny-chat", chat_engine.config, chat_engine.info)
    with grammars._turn:
        futures = [grammars.start(json.dumps({"choice": [word]})) for word in ("a", "b")]
        futures[0].cancel()
    assert futures[1].result(30).error is None
    assert [grammars.find(json.dumps({"choice": [word]})) is None for word in ("a", "b")] == [True, False]
    with grammars._turn:
        assert grammars.start(json.dumps({"choice": ["b"]})).result(0).error is None, "it waits for no other"


def test_compiled_grammars_are_kept_up_to_a_total_size(chat_engine: Engine):
    info = chat_engine.info
    grammars = Grammars(
        lambda: backend_of(chat_engine.tokenizer, info.vocab_size, info.eos_token_ids), kept_bytes=100 << 20
    )
    structures = [json.dumps({"regex": "ab" * n}) for n in range(1, 5)]
    for structure, size in zip(structures, (40, 30, 50, 0), strict=True):  # the last one counts as 1 MB
        grammars.start(structure, size << 20).result(60)
        grammars.start(structures[0]).result(60)
    assert [grammars.find(structure) is None for structure in structures] == [False, True, False, False]
    grammars.start(json.dumps({"regex": "abc"}), 200 << 20).result(60)
    assert not any(map(grammars.find, structures))


def test_a_program_that_ends_waits_for_no_grammar(chat_engine: Engine, log: Path):
    """Neither for its check nor for its compilation."""
    program = f"""
import subprocess, sys, time
from roseplay.engine.grammar_checks import GrammarChecks
from roseplay.model.grammar import Grammars
Grammars(lambda: time.sleep(100)).start("a")
GrammarChecks(None, (sys.executable, "-c", {LOGS!r}, {str(log)!r})).start("slow")
while True:
    try:
        if open({str(log)!r}).read():
            break
    except OSError:
        time.sleep(0.01)
processes = subprocess.run(["ps", "-o", "pid=", "--ppid", str(__import__("os").getpid())], capture_output=True, text=True)
print(processes.stdout.split()[0])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert result.stderr == ""
    command = Path(f"/proc/{result.stdout.strip()}/cmdline")
    wait_until(lambda: not command.exists() or not command.read_bytes())  # it is empty until somebody has waited for it


class Interrupted(Future[int]):
    """A check during which the program is interrupted."""

    def start(self, structure: str) -> Future[int]:
        return self

    def result(self, timeout: float | None = None) -> int:
        raise KeyboardInterrupt


def test_without_a_process_for_it_a_request_is_refused(chat_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """The interrupt of somebody who waits in ``submit`` cancels the check."""
    checks = GrammarChecks(None, (sys.executable, "-c", ""))
    monkeypatch.setitem(grammar_checks._of_tokenizers, chat_engine.tokenizer, checks)
    params = SamplingParams(structured_outputs={"choice": ["a"]})
    with pytest.raises(ValueError, match="could not be checked in time"):
        chat_engine.submit("Hi", params)
    assert chat_engine.submit("Hi", params, grammar_bytes=1 << 20).result(60).text == "a", (
        "another process has checked it"
    )
    interrupted = Interrupted()
    monkeypatch.setitem(grammar_checks._of_tokenizers, chat_engine.tokenizer, interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat_engine.submit("Hi", params)
    assert interrupted.cancelled()
