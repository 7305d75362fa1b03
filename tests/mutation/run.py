"""Changes a seeded sample of roseplay's code, one place at a time, and counts what the tests notice: ``make mutate``.

The mutants are mutmut's (operators, constants, arguments, assignments, branches), without those of texts and of what is
logged, and those that drop a call. Those that are known to pass are in ``survivors.toml``, each with its reason.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

REPOSITORY = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).parent / "survivors.toml"
WANTED = 0.95
KILLED = ("killed", "timeout", "suspicious", "segfault")

# Those of tests/engine/test_health.py that need no model.
WATCHDOG_TESTS = (
    "a_silent_worker_is_overdue_then_frozen",
    "a_step_may_take_three_times_its_prediction_before_it_is_overdue",
    "a_step_that_is_announced_late_has_its_whole_time",
    "a_prediction_holds_until_its_step_has_ended",
    "nothing_is_expected_of_an_idle_worker",
    "time_in_which_this_process_was_stopped_does_not_count",
    "a_heartbeat_is_missed_only_while_somebody_looks",
)
# Functions that run in a worker's process, where mutmut does not see which tests reach them.
OUT_OF_SIGHT = ("_process_main", "leave_signals_to_parent", "freeze_objects", "_beat_until_parent_ends")
# The tests that are to notice, fast ones: a mutant that survives has to pass all that reach its function.
TESTS = {
    "core": ["tests/core"],
    "engine": [
        *(f"tests/engine/test_{name}.py" for name in ("worker", "streams", "client", "messages", "detokenizer")),
        *(f"tests/engine/test_health.py::test_{name}" for name in WATCHDOG_TESTS),
    ],
}
CONFIGURATION = """
[tool.mutmut]
source_paths = ["roseplay"]
only_mutate = ["roseplay/{package}/*"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = {arguments}
do_not_mutate_patterns = ["logger\\\\.", "_log_failure\\\\("]
timeout_multiplier = 2.0
timeout_constant = 3.0
use_git_change_detection = false
"""
# A few of the seeded runs are enough; Hypothesis would try to shrink what these find as well.
DESELECTED = [
    "tests/core/test_model_check.py::test_any_sequence_of_operations_is_served_correctly",
    "tests/core/test_model_check.py::test_random_operations_are_served_correctly[1",
    "tests/core/test_model_check.py::test_random_operations_are_served_correctly[2",
]


@dataclass(frozen=True)
class Mutant:
    """A change of one function, as mutmut names it, and what became of it."""

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
    """A call whose value nobody uses does not happen; what is logged is left alone."""
    if isinstance(node.value, cst.Call):
        function = cst.Module([]).code_for_node(node.value.func)
        if not function.startswith(("logger.", "self._log_failure")):
            yield cst.Pass()


def _set_up(package: str) -> Path:
    """A fresh copy of the sources and tests, with mutmut's configuration for the package."""
    folder = REPOSITORY / "build" / "mutation" / package
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("roseplay", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignore)
    arguments = ["-p", "no:cacheprovider", *(f"--deselect={test}" for test in DESELECTED)]
    configuration = CONFIGURATION.format(package=package, tests=TESTS[package], arguments=arguments)
    (folder / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text() + configuration)
    return folder


def _run(package: str, sample: int, seed: int, only: str, jobs: int) -> tuple[int, list[Mutant]]:
    """How many mutants there are, and those of the sample."""
    os.chdir(_set_up(package))
    from mutmut import __main__ as mutmut
    from mutmut.mutation import mutators
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    operators = [(kind, make) for kind, make in mutators.mutation_operators if make is not mutators.operator_string]
    mutators.mutation_operators[:] = [*operators, (cst.Expr, _drop_call)]
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
    """Why the mutants of one kind pass, ``equivalent`` or ``survivor``."""
    entries = tomllib.loads(SURVIVORS.read_text()).get(kind, [])
    return {(entry["function"], tuple(entry["removed"]), tuple(entry["added"])): entry["reason"] for entry in entries}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--package", choices=sorted(TESTS), default="core", help="which code (default: %(default)s)")
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
    share = noticed / max(1, noticed + len(survivors))
    print("\nNot noticed:" if survivors else "\nAll were noticed.")
    for mutant in survivors:
        print(f"  {mutant}")
        if mutant.key in reasons:
            print(f"    known: {reasons[mutant.key]}")
    print(
        f"{args.package}: {len(mutants)} of {total} mutants (seed {args.seed}): {noticed} noticed, "
        f"{len(equivalent)} equivalent, {len(survivors)} not noticed; {share:.1%} of those that could be"
    )
    return int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())
