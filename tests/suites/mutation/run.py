"""Mutates a seeded sample of roseplay's code, one place at a time, and counts what the tests notice: ``make mutate``.

The mutants are mutmut's (operators, constants, arguments, assignments, branches), except those of texts, logging and
the looks of charts, plus mutants that drop a call. Mutants that are known to survive are in ``survivors.toml``, each
with its reason.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from mutmut.mutation import mutators

REPOSITORY = Path(__file__).resolve().parents[3]
SURVIVORS = Path(__file__).parent / "survivors.toml"
KILLED = ("killed", "timeout", "suspicious", "segfault")


@dataclass(frozen=True)
class Package:
    """What is mutated, and which tests should notice."""

    changed: str  # patterns of paths in ``roseplay``, in which ``*`` also matches ``/``
    # Fast tests; a mutant survives if it passes all tests that reach its function. None of them starts a process, in
    # which mutmut does not see what is reached.
    tests: list[str]
    deselected: list[str] = field(default_factory=list)  # the tests in ``tests`` that are left out
    unchanged: list[str] = field(default_factory=list)  # paths that match ``changed`` but are not mutated
    wanted: float = 0.9  # the fraction of mutants that must be noticed, not counting equivalent ones


def _tests_in(folder: str, *names: str) -> list[str]:
    """Test files, given as ``name``, and tests in them, given as ``name::function``."""
    return ["{}/test_{}.py{}{}".format(folder, *name.replace("::", "::test_").partition("::")) for name in names]


PACKAGES = {
    "core": Package(
        "core/*",
        ["tests/core"],
        # A few of the seeded runs are enough, and Hypothesis would also try to shrink the failures that these find.
        deselected=_tests_in(
            "tests/core",
            "model_check::any_sequence_of_operations_is_served_correctly",
            "model_check::random_operations_are_served_correctly[1",
            "model_check::random_operations_are_served_correctly[2",
        ),
        wanted=0.95,
    ),
    "engine": Package(
        "engine/*",
        _tests_in("tests/engine", "worker", "streams", "client", "messages", "detokenizer", "health"),
        wanted=0.95,
    ),
    "remote": Package(
        "extras/servers/*",
        ["tests/extras/servers"],
        deselected=_tests_in(
            "tests/extras/servers",
            "attaching::it_needs_no_torch",
            "other_servers::a_server_that_is_killed",
            "lateness::a_loop_that_is_held_up_is_noticed",
        ),
        unchanged=["extras/servers/check/*"],  # checks a server that the tests start as a process
    ),
    "lab": Package(
        "extras/lab/*",
        ["tests/extras/lab"],
        deselected=_tests_in(
            "tests/extras/lab",
            "engines::settings_that_change_how_steps_are_computed_do_not_change_the_work",
            "engines::processes_are_gone_when_it_is_done_or_stopped_while_it_starts",
            "engines::processes_are_gone_when_it_is_stopped",
        ),
    ),
    "serve": Package(
        "serve/*",
        _tests_in(
            "tests/serve",
            *("admission", "bodies_in_parts", "drain", "echo", "errors", "generation_config", "hosts_and_origins"),
            *("keys", "listening", "metrics", "openai_client", "prompt_text", "request_phases", "runtime_config"),
            *("server_flags", "traces"),
        ),
        deselected=_tests_in(
            "tests/serve",
            "admission::every_one_of_many_is_answered_or_refused",
            "drain::a_stream_that_runs_is_finished_and_a_new_request_refused",
            "drain::the_end_comes_at_a_second_signal",
            "metrics::a_real_prometheus_answers_the_dashboards_queries",
            "traces::the_end_of_a_server_sends_what_is_left",
            "traces::without_the_flag_nothing_of_it_is_loaded",
            "traces::the_flag_needs_the_extra_and_says_so",
        ),
    ),
}
# Functions that run where the tests that reach them cannot be seen.
OUT_OF_SIGHT = (
    *("_process_main", "leave_signals_to_parent", "freeze_objects", "_beat_until_parent_ends"),  # in a worker's process
    *("_serve__", "_serve_one", "_serve_replicas"),  # in `roseplay serve`
    *("_of_requests", "_of_gaps"),  # in roseplay/extras/lab/measures.py, when it is imported
)
# Texts for people, which no program reads.
TEXTS = ("description", "epilog", "help", "metavar")
# Hypothesis's profile for CI uses the same examples each time and tolerates a slow machine.
ARGUMENTS = ["-p", "no:cacheprovider", "-p", "tests.suites.mutation.reached", "--hypothesis-profile=ci"]
CONFIGURATION = """
[tool.mutmut]
source_paths = ["roseplay"]
also_copy = ["assets"]
only_mutate = {changed}
do_not_mutate = {unchanged}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = {arguments}
do_not_mutate_patterns = ["logger\\\\.", "_log_failure\\\\(", "COLOURS\\\\["]
process_isolation = "forkserver"
timeout_multiplier = 2.0
timeout_constant = 10.0
use_git_change_detection = false
"""


@dataclass(frozen=True)
class Mutant:
    """A change of one function, as named by mutmut, and its outcome."""

    name: str
    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    status: str

    @property
    def key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return self.function, self.removed, self.added

    def __str__(self) -> str:
        lines = [f"- {line}" for line in self.removed] + [f"+ {line}" for line in self.added]
        return "\n    ".join([f"{self.function} ({self.status})", *lines])


def _drop_call(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """Drop a call whose value is not used; logging is left alone."""
    if isinstance(node.value, cst.Call):
        function = cst.Module([]).code_for_node(node.value.func)
        if not function.startswith(("logger.", "self._log_failure")):
            yield cst.Pass()


def _change_arguments(node: cst.Call) -> Iterator[cst.CSTNode]:
    """mutmut's changes of arguments, except those of texts."""
    texts = [argument for argument in node.args if argument.keyword and argument.keyword.value in TEXTS]
    for changed in mutators.operator_arg_removal(node):
        if all(text in changed.args for text in texts):
            yield changed


def _set_up(name: str) -> Path:
    """A fresh copy of the sources and tests, with mutmut's configuration for the package."""
    folder = REPOSITORY / "build" / "mutation" / name
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for copied in ("roseplay", "tests", "assets"):
        shutil.copytree(REPOSITORY / copied, folder / copied, ignore=ignore)
    package = PACKAGES[name]
    deselected = [f"--deselect={test}" for test in package.deselected]
    configuration = CONFIGURATION.format(
        changed=[f"roseplay/{package.changed}"],
        unchanged=[f"roseplay/{path}" for path in package.unchanged],
        tests=package.tests,
        arguments=[*ARGUMENTS, *deselected],
    )
    (folder / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text() + configuration)
    return folder


def _run(package: str, sample: int, seed: int, only: str, jobs: int) -> tuple[int, list[Mutant]]:
    """The number of mutants, and those of the sample."""
    os.chdir(_set_up(package))
    from mutmut import __main__ as mutmut
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    replaced = (mutators.operator_string, mutators.operator_arg_removal)
    operators = [(kind, make) for kind, make in mutators.mutation_operators if make not in replaced]
    mutators.mutation_operators[:] = [*operators, (cst.Call, _change_arguments), (cst.Expr, _drop_call)]
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(jobs)
    found, _ = mutmut.collect_source_file_mutation_data(mutant_names=())
    names = sorted(name for _, name, _ in found if only in name and not name.split(".x_")[-1].startswith(OUT_OF_SIGHT))
    chosen = sorted(random.Random(seed).sample(names, min(sample, len(names))))
    mutmut._run(chosen, jobs)
    results, _ = mutmut.collect_source_file_mutation_data(mutant_names=chosen)
    mutants = []
    for data, name, code in results:
        lines = get_diff_for_mutant(name, path=data.path).splitlines()[3:]
        removed = tuple(line[1:].strip() for line in lines if line.startswith("-"))
        added = tuple(line[1:].strip() for line in lines if line.startswith("+"))
        function = name.partition("__mutmut_")[0].replace(".x_", ".").replace(".xǁ", ".").replace("ǁ", ".")
        mutants.append(Mutant(name, function, removed, added, status_by_exit_code[code]))
    return len(names), mutants


def _read_reasons(kind: str) -> dict[tuple[str, tuple[str, ...], tuple[str, ...]], str]:
    """The reasons why mutants of one kind survive, ``equivalent`` or ``survivor``."""
    entries = tomllib.loads(SURVIVORS.read_text()).get(kind, [])
    return {(entry["function"], tuple(entry["removed"]), tuple(entry["added"])): entry["reason"] for entry in entries}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--package", choices=sorted(PACKAGES), default="core", help="which code (default: %(default)s)")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another sample for another number (default: 0)")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    args = parser.parse_args(argv)
    total, mutants = _run(args.package, args.sample, args.seed, args.only, args.jobs)
    known, reasons = _read_reasons("equivalent"), _read_reasons("survivor")
    passed = [mutant for mutant in mutants if mutant.status not in KILLED]
    equivalent = [mutant for mutant in passed if mutant.key in known]
    survivors = [mutant for mutant in passed if mutant.key not in known]
    noticed = len(mutants) - len(passed)
    timeouts = sum(mutant.status == "timeout" for mutant in mutants)
    share = noticed / max(1, noticed + len(survivors))
    print("\nNot noticed:" if survivors else "\nAll were noticed.")
    for mutant in survivors:
        print(f"  {mutant}")
        if mutant.key in reasons:
            print(f"    known: {reasons[mutant.key]}")
    print(
        f"{args.package}: {len(mutants)} of {total} mutants (seed {args.seed}): {noticed} noticed ({timeouts} by "
        f"a timeout), {len(equivalent)} equivalent, {len(survivors)} not noticed; {share:.1%} of those that could be"
    )
    return int(share < PACKAGES[args.package].wanted)


if __name__ == "__main__":
    sys.exit(main())
