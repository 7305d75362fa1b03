"""All causal model types of transformers against the engine, as a table: ``python -m tests.suites.families.sweep``.

Each type is tried in its own process with a time limit, so that one that hangs or crashes is a row of the table.
``--write`` puts the table into docs/models.md. Given names of types, it tries only these.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.suites.families.family_check import Finding, send_finding

LIMIT_S = 120.0
DOC = Path(__file__).resolve().parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- families: begin, written by make families -->", "<!-- families: end -->"


def model_types() -> list[str]:
    """Every causal model type of the installed transformers, in alphabetical order."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def sweep(names: Sequence[str], limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Try each type in its own process, which is killed after ``limit_s``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.suites.families.family_check"])
    for name in names:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=send_finding, args=(name, sender), daemon=True)
        process.start()
        sender.close()
        try:
            if receiver.poll(limit_s):
                yield receiver.recv()
            else:
                yield Finding(name, "not built", f"no result within {limit_s:.0f} s")
        except EOFError:
            process.join()
            yield Finding(name, "not built", f"its process ended with code {process.exitcode}")
        finally:
            process.kill()
            process.join()


def table(findings: Sequence[Finding]) -> str:
    """A Markdown table: one row for each result and reason, with the types that it applies to."""
    rows: dict[tuple[str, str], list[str]] = {}
    for found in findings:
        rows.setdefault((found.kind, general(found)), []).append(f"`{found.model_type}`")
    order = ("wrong", "equal", "refused", "not built")
    counts = {kind: sum(found.kind == kind for found in findings) for kind in order}
    lines = [
        f"transformers {transformers.__version__}, {len(findings)} model types: "
        + ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind == "wrong")
        + ".",
        "",
        "| result | why | model types |",
        "|---|---|---|",
    ]
    for (kind, why), names in sorted(rows.items(), key=lambda row: (order.index(row[0][0]), -len(row[1]), row[0][1])):
        lines.append(f"| {kind} | {why} | {', '.join(names)} |")
    return "\n".join(lines)


def general(found: Finding) -> str:
    """The reason without the type's own name, so that equal reasons share a row."""
    why = found.why.replace("|", "/").replace(f"this {found.model_type} ", "").removeprefix(f"{found.model_type} ")
    why = re.sub(r" \(logits differ by [^)]*\)", "", why)
    return re.sub(r"^\w+_text (?=has )", "", why)  # the text part of a model for text and images


def write(text: str) -> None:
    """Replace the table in docs/models.md."""
    before, rest = DOC.read_text().split(BEGIN)
    DOC.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def documented() -> dict[str, tuple[str, str]]:
    """``parse`` applied to docs/models.md."""
    return parse(DOC.read_text().split(BEGIN)[1].split(END)[0])


def parse(text: str) -> dict[str, tuple[str, str]]:
    """The result and reason of each model type in a table."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[2].startswith("`"):
            found.update({name.strip("` "): (cells[0], cells[1]) for name in cells[2].split(",")})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.families.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("model_types", nargs="*", help="default: all")
    parser.add_argument("--write", action="store_true", help="write the table into docs/models.md")
    options = parser.parse_args(arguments)
    if options.write and options.model_types:
        parser.error("--write takes all model types")
    findings, begin = [], time.monotonic()
    for found in sweep(options.model_types or model_types()):
        findings.append(found)
        print(f"{time.monotonic() - begin:6.1f} s  {found.model_type}: {found.kind} {found.why}", flush=True)
    print("\n" + table(findings))
    if options.write:
        write(table(findings))
    return int(any(found.kind == "wrong" for found in findings))


if __name__ == "__main__":
    sys.exit(main())
