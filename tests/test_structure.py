"""Imports run in one direction, and core runs without torch. Read from the source, so that lazy imports count too."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "roseplay"

# The core's parts, from the lowest up: each may import those before it. What stands in one line is one level.
LEVELS = (
    "settings clock formats own_models version host_memory extensions",
    "config arguments",
    "core",
    "model",
    "kernels",
    "engine",
    "models traffic",
    "recording",
    "serve",
    "play",
    "cli __init__",
    "__main__",
)
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts.split()}
TORCH_FREE = {"core", "serve", "play", "traffic", "recording"}  # they reach models through the engine only


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node; expressions, which are many more nodes, are not looked through."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, as (dotted name, line)."""
    for node in statements(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the module's full name"
            assert node.module
            # `from roseplay import core` imports a part as well as `from roseplay.core import ...` does.
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if node.module == "roseplay" else node.module, node.lineno


def test_imports_run_one_way() -> None:
    """The core imports no extension; what extensions import from each other is theirs."""
    wrong = []
    for path in (path for path in sources() if part_of(path) != "extras"):
        part = part_of(path)
        for name, line in imported(path):
            target = part_of_name(name)
            if target in ("", "__version__", part):
                continue
            upward = target not in LEVEL or LEVEL[target] >= LEVEL[part]
            if upward or (target in ("model", "kernels") and part in TORCH_FREE):
                wrong.append(f"{path}:{line}: {part} must not import {name}")
    assert wrong == []


# What names an extension in the core, and in the core's tests.
NAMES_ONE = {
    PACKAGE: re.compile(r"\b[Ll]abs?\b|\brp-lab\b|\broseplay[./]extras[./]\w"),
    TESTS: re.compile(r"\b(?:roseplay|tests)\.extras\b|\brp-lab\b|/ui/lab\b|\bRose\.lab\b"),
}


def test_the_core_names_no_extension() -> None:
    """So that each can be left out with its tests. Suites of the whole product use all."""
    for top, names in NAMES_ONE.items():
        core = [path for path in top.rglob("*.*") if path.suffix in (".py", ".js", ".css")]
        for path in core:
            if not {"extras", "suites"} & {*path.parts} and path.name not in (
                "test_structure.py",
                "test_core_alone.py",
            ):
                assert names.findall(path.read_text()) == [], path


def test_core_needs_nothing_but_python() -> None:
    paths = [path for path in sources() if part_of(path) in ("core", "config")]
    assert len(paths) > 3
    for path in paths:
        for name, line in imported(path):
            top = name.split(".")[0]
            assert top == "roseplay" or top in sys.stdlib_module_names, f"{path}:{line}: core must not import {name}"


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running ``code``."""
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(result.stdout.split())


def test_importing_core_loads_no_torch() -> None:
    modules = ["roseplay." + ".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in PACKAGE.glob("core/*.py")]
    loaded = modules_after("".join(f"import {name.removesuffix('.__init__')}\n" for name in modules))
    assert "roseplay.core.request" in loaded
    assert not loaded & {"torch", "numpy", "transformers"}


def test_the_command_line_loads_only_what_is_asked_for() -> None:
    loaded = modules_after("from roseplay.cli import main\nassert main(['--version']) == 0")
    assert not loaded & {"torch", "gradio", "transformers", "roseplay.play", "roseplay.extras.bench", "roseplay.engine"}


def test_the_process_beside_a_worker_loads_no_torch() -> None:
    loaded = modules_after(
        "from roseplay.config import EngineConfig\n"
        "from roseplay.engine.start import open_tokenizer\n"
        "assert open_tokenizer('tiny-chat', EngineConfig(worker='process')).encode('KV block')"
    )
    assert not loaded & {"torch", "numba", "gradio"}


def test_a_benchmarks_bad_flag_is_told_before_torch_is_loaded() -> None:
    loaded = modules_after(
        "from roseplay.cli import main\nassert main(['bench', 'streaming', '--max-batch-size', '0']) == 2"
    )
    assert not loaded & {"torch", "gradio", "transformers"}


def test_engines_are_typed() -> None:
    """A function that takes an engine says which part of ``EngineLike`` it needs and passes on no unknown arguments."""
    for path in sources():
        for node in statements(parsed(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [one.arg for one in given if one.annotation and ast.unparse(one.annotation) == "Any"]
            assert not {"engine", "live"} & set(untyped), f"{path}:{node.lineno}: {node.name} takes any engine"
            assert node.args.kwarg is None or node.args.kwarg.arg != "how", (
                f"{path}:{node.lineno}: {node.name} takes **how"
            )


def test_tests_stand_where_the_code_stands() -> None:
    """Besides these, there are tests of the whole page in a browser, and suites that span rooms."""
    rooms = {path.name: path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    folders = {path.parent for path in TESTS.rglob("test_*.py")} - {TESTS}
    for folder in folders:
        room, *below = (part for part in folder.relative_to(TESTS).parts if part != "browser" or folder.parent == TESTS)
        if not {"browser", "suites", "suite"} & {*folder.parts}:
            assert PACKAGE.joinpath(room, *below).is_dir(), f"{folder} has no counterpart in roseplay"
            assert any(part_of_name(name) == room for path in folder.rglob("*.py") for name, _ in imported(path)), (
                folder
            )
    assert set(rooms) - {folder.relative_to(TESTS).parts[0] for folder in folders} == set()


SHORT, LONG = 40, 300  # lines


def test_no_file_is_a_fragment_of_another() -> None:
    """A short file that only one other file uses, and no test, is part of that file unless both are too long for one."""
    scripts = sorted(PACKAGE.rglob("*.js"))
    texts = {path: path.read_text() for path in [*sources(), *scripts, *TESTS.rglob("*.py"), *TESTS.rglob("*.js")]}
    lines = {path: text.count("\n") for path, text in texts.items()}
    for path in [*sources(), *scripts]:
        if lines[path] >= SHORT or path.name in ("__init__.py", "__main__.py"):
            continue
        others = {other: text for other, text in texts.items() if other != path and other.name != "extension.py"}
        users = [other for other, text in others.items() if _uses(text, path)]
        if len(users) == 1 and users[0].suffix == path.suffix:
            assert lines[path] + lines[users[0]] > LONG, f"{path} is short: make it part of {users[0]}, its only user"


def _uses(text: str, path: Path) -> bool:
    """Returns whether a file with this text imports another one, or names it as a component's script."""
    if path.suffix == ".js":
        return f'/{path.name}"' in text or f'"{path.name}"' in text
    package, _, module = f"roseplay.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}".rpartition(".")
    if f"{package}.{module}" in text:
        return re.search(rf"{re.escape(package)}\.{module}\b", text) is not None
    return f"from {package} import" in text and re.search(rf"from {package} import .*\b{module}\b", text) is not None


def part_of_name(name: str) -> str:
    """The part of roseplay that a dotted name belongs to, or ""."""
    top, part, *_ = [*name.split("."), "", ""]
    return part if top == "roseplay" else ""


MADE_UP = """
import json, runpy, sys
from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import StepResult
from roseplay.engine.published import step_record
from roseplay.formats.json_text import encode
from roseplay.recording.rows import PageTime, step_row
from roseplay.recording import exports, schema
from roseplay.recording.reader import demo_path

scheduler = Scheduler(num_blocks=9, block_size=4, max_model_len=32, max_saved_logits=1)
scheduler.add(Request(1, [5, 6, 7], SamplingParams(max_new_tokens=2)))
record = step_record(scheduler, scheduler.schedule(), StepResult([], []), 0, 1, 0, [])
row = step_row(record, PageTime(SYSTEM_CLOCK), 8).values()
header = json.loads(demo_path().open("rb").readline())
header["columns"] = schema.COLUMNS
frame = {"t": 1.0, "steps": [row], **{name: [] for name in ("tokens", "requests", "knobs", "blocks")}}
lines = [encode(line) + b"\\n" for line in (header, frame)]
names, values = (line.split(",") for line in exports.export("steps", lines).decode().split())
(step,) = (event for event in json.loads(exports.export("trace", lines))["traceEvents"] if event["name"] == "step 0")
page = runpy.run_path("docs/records.py")["script"]()
print(json.dumps({
    "schema": schema.ROW_FIELDS["steps"]["made_up"]["type"], "csv": dict(zip(names, values))["made_up"],
    "trace": step["args"]["made_up"], "store": "  made_up: I32, // for the test (pages)" in page,
}))
"""


def test_a_record_is_declared_once(tmp_path: Path) -> None:
    """A step's figure is in rows, schema, tables, traces and the page's store, although two files were touched."""
    shutil.copytree(PACKAGE, tmp_path / "roseplay", ignore=shutil.ignore_patterns("__pycache__", "static"))
    for name in ("docs", "assets"):
        (tmp_path / name).symlink_to(TESTS.parent / name)
    declared, computed = (tmp_path / "roseplay" / "core" / name for name in ("step.py", "step_builder.py"))
    after = "    _: KW_ONLY\n"
    declared.write_text(
        declared.read_text().replace(after, f'{after}    made_up: Annotated[int, "pages", "for the test"] = 0\n')
    )
    after = "        step.prompt_tokens += num_tokens\n"
    computed.write_text(computed.read_text().replace(after, f"{after}        step.made_up = 7\n"))
    run = subprocess.run(
        [sys.executable, "-c", MADE_UP], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"schema": "whole", "csv": "7", "trace": 7, "store": True}


def test_the_page_asks_the_server_in_one_place() -> None:
    assert [path.name for path in PACKAGE.rglob("*.js") if "fetch(" in path.read_text(encoding="utf-8")] == ["ask.js"]


def test_the_page_draws_through_its_own_layer_and_the_public_api_of_others() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.js")}
    shared = PACKAGE / "play" / "static" / "shared"
    assert [path for path, text in texts.items() if "getContext" in text and shared not in path.parents] == []
    assert [(name, found) for name, text in texts.items() for found in re.findall(r"\w\._[a-z]\w*", text)] == []


# Names of others that begin with an underscore and have no public counterpart.
PRIVATE = {
    "engine/transport.py": {"_ignore_epipe", "_reader"},  # of multiprocessing's Queue
    "kernels/cpu/pack.py": {"_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported"},
    "kernels/cpu/products.py": {"_reorder_linear_weight", "_linear_pointwise"},
    "kernels/cpu/recorder.py": {"_schema", "_overloadpacket", "_python_dispatch"},
    "kernels/cuda/graphs.py": {"_cuda_endAllocateToPool", "_cuda_releasePool"},
    "kernels/gated_mlp.py": {"_forward_hooks", "_forward_pre_hooks"},
    "model/block_tensor.py": {"_make_wrapper_subclass", "_to_copy", "_pytree"},
    "model/loader.py": {"_from_config", "_attn_implementation"},
    "model/states.py": {"_foreach_copy_"},
    "play/web/gradio_gate.py": {"_queue"},
    "extras/ray/node_address.py": {"_private"},
}
DOCUMENTED = {"_replace", "_asdict", "_fields", "_field_defaults", "_exit"}  # of named tuples, and of os


def test_names_of_others_are_public() -> None:
    for path in sources():
        text = path.read_text()
        names = set(re.findall(r"(?<!\bself)(?<!\bcls)(?<!\bsuper\(\))\.(_[a-z]\w*)", text)) - DOCUMENTED
        others = {name for name in names if f"self.{name}" not in text and f"def {name}(" not in text}
        assert others == PRIVATE.get(str(path.relative_to(PACKAGE)), set()), path


STYLES_AT_MOST = 4305  # lines, without those of extensions


def test_a_look_is_declared_once() -> None:
    """Colours and sizes of type are tokens, which reports share; what two views look alike in is one rule."""
    sheets = {path: path.read_text() for path in PACKAGE.rglob("*.css")}
    assert sum(text.count("\n") for path, text in sheets.items() if "extras" not in path.parts) <= STYLES_AT_MOST
    literal = re.compile(
        r": [^;{]*(?:#[0-9a-fA-F]{3,8}\b|\b(?:rgb|hsl)a?\()|\bfont(?:-size)?: (?:\d+ )?[\d.]*[1-9]\w*[^\d ]"
    )
    for path, text in sheets.items():
        assert path.name == "tokens.css" or literal.findall(text) == [], path


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, and those for type checking."""
    modules = {f"roseplay.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}": path for path in sources()}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    needs: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in statements(parsed(path)):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                inside = f"{node.module}.{alias.name}"
                needs[name] |= {inside if inside in modules else str(node.module)} & modules.keys() - {name}
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which names the modules


def test_there_is_one_of_each_mover() -> None:
    """One class reads telemetry (the playground reads frames), one feeds streams, and one loop sends on a schedule."""
    for call, files in {
        ".since(": {"engine/telemetry.py", "play/playground.py"},
        "RequestEvent(": {"engine/live_streams.py"},
        "clock.wait(": {"traffic/sending.py", "extras/simulation/runner.py", "play/demos/player.py"},
    }.items():
        assert {str(path.relative_to(PACKAGE)) for path in sources() if call in path.read_text()} == files, call


# Lines of Python, scripts and styles in the package. A commit may lower it.
TOTAL = 85_754


def test_the_package_does_not_grow() -> None:
    files = [path for path in PACKAGE.rglob("*.*") if path.suffix in (".py", ".js", ".css")]
    assert sum(path.read_text().count("\n") for path in files) <= TOTAL


def test_the_routes_of_the_page_know_nothing_of_its_parts() -> None:
    """What is built on ``play/web`` is not imported by it, not even by way of other modules."""
    users = {path: set(_imported_files(path)) for path in (PACKAGE / "play").rglob("*.py")}
    web = {path for path in users if path.parent.name == "web"}
    below, added = set(web), web
    while added := {path for lower in added for path in users.get(lower, ())} - below:
        below |= added
    built = {path for path, lower in users.items() if lower & web} - web
    assert not below & built, f"play/web imports {sorted(map(str, below & built))}"


def _imported_files(path: Path) -> Iterator[Path]:
    for node in statements(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                yield PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")


MOST_REPLACED = 60


def test_parts_that_tests_replace_are_arguments() -> None:
    texts = [path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)]
    assert sum(text.count("monkeypatch.setattr(") for text in texts) <= MOST_REPLACED


# Text that the page and the Lab take apart all the same: in how many lines, and what it is instead of a sentence.
TAKEN_APART = {
    "play/allocator.py": (1, "the name of a platform"),
    "play/answer_settings.py": (1, "the lines of a text box"),
    "play/chats.py": (1, "a prompt, as its tokenizer writes it"),
    "play/demos/player.py": (1, "the name of a figure"),
    "play/lanes.py": (2, "what a poll says the page has"),
    "play/main.py": (1, "the name of the program"),
    "play/model_picker.py": (1, "a path"),
    "play/options.py": (2, "an argument, NAME,NAME, and the name of the program"),
    "play/server.py": (1, "a path"),
    "play/session.py": (1, "a tab's id"),
    "play/story/caption.py": (2, "the forms of captions, which are written with marks"),
    "play/web/assets.py": (1, "style sheets"),
    "play/web/gradio_gate.py": (10, "paths, ids and a media type"),
    "play/web/scripts.py": (2, "the page's modules"),
    "play/web/start_gate.py": (2, "paths"),
    "extras/lab/arms.py": (1, "a device"),
    "extras/lab/memory.py": (1, "a device"),
    "extras/lab/report.py": (1, "a device"),
    "extras/lab/from_flags.py": (1, "an argument, NAME=VALUE"),
    "extras/lab/static/address.js": (3, "the page's address"),
    "extras/lab/static/settings.js": (4, "a server's address, and what a visitor typed"),
    "extras/lab/static/plan.js": (1, "a field's name"),
    "extras/lab/static/state.js": (1, "a figure's name"),
    "extras/lab/static/cards.js": (1, "an element's id"),
}
TAKES_APART = {
    ".py": re.compile(r"\bre\.\w+\(|\.(startswith|endswith|split|partition|rpartition|removeprefix|removesuffix)\("),
    ".js": re.compile(r"\.(startsWith|endsWith|split|replace|match|matchAll|exec|test|search)\(|[=(,:!?&|] /[^/* ]"),
}


def test_nothing_takes_sentences_apart() -> None:
    """Findings and errors have fields for programs; words are for people."""
    for folder, suffixes in (("extras/lab", (".py", ".js")), ("play", (".py",))):
        for path in (path for path in (PACKAGE / folder).rglob("*") if path.suffix in suffixes):
            lines = [line for line in path.read_text().splitlines() if TAKES_APART[path.suffix].search(line)]
            most, _ = TAKEN_APART.get(str(path.relative_to(PACKAGE)), (0, ""))
            assert len(lines) <= most, f"{path} takes text apart: {lines}"


def test_orders_and_files_are_declared() -> None:
    """Pydantic checks them, strictly where a number is wanted, so that nothing needs a guard against booleans."""
    paths = [path for room in ("extras/lab", "play") for path in (PACKAGE / room).rglob("*.py")]
    paths += [PACKAGE / "traffic" / f"{name}.py" for name in ("own", "scenario")]
    guarded = [str(path) for path in paths if re.search(r"isinstance\([^)]*\bbool\b", path.read_text())]
    assert guarded == []
