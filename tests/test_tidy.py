"""Holds the rules of CONTRIBUTING.md: sizes, who may use whom, and words that do not belong here.

Each check takes the root of a source tree and returns its problems, one line each; the last tests plant violations of
every kind in a made-up tree and see them found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
CODE_DIRS = ("csrc", "kvoffload", "tests", "bench", "build_backend")
CXX = (".cpp", ".h", ".cu", ".cuh")
FILE_LINES, FILE_LINES_HABIT = 500, 300
FUNCTION_LINES, FUNCTION_LINES_HABIT = 70, 40
OVER_HABIT_SHARE = 0.1

# Room -> the rooms whose headers it may include, besides its own (CMakeLists.txt links the same way).
ROOMS = {
    "base": set(),
    "layout": {"base"},
    "ledger": {"base", "layout"},
    "storage": {"base"},
    "cuda": {"base"},
    "kernels": {"base", "cuda"},
    "device": {"base", "cuda", "kernels"},
    "memory": {"base", "device"},
    "transfer": {"base", "layout", "device", "memory", "kernels"},
    "bindings": {"base", "layout", "ledger", "storage", "kernels", "device", "memory", "transfer"},
}
CUDA_HEADER = re.compile(r"(cuda|cudaTypedefs|cuda_\w+|cooperative_groups|cuda/\w+|curand\w*|nv\w*)(\.h|\.cuh)?$")
CUDA_FILES = re.compile(r"csrc/(cuda|kernels)/|csrc/(device|transfer)/cuda_\w+\.(cpp|h)$")

# A module may import from its own layer and from those before it.
LAYERS = (
    {"_C", "errors"},
    {
        "config",
        "free_memory",
        "messages",
        "hits",
        "tensors",
        "layout",
        "streams",
        "transfer",
        "traces",
        "path_file",
        "paths",
        "prefill",
        "worth",
    },
    {"ledger_disk", "disk", "hello_check"},
    {"ledger", "mover", "metrics"},
    {"cache", "cache_disk"},
    {"cli", "vllm", "sglang"},
)
NEVER_TOGETHER = (
    {"ledger", "mover"},  # two halves that speak in messages
    {"ledger", "layout"},  # the ledger never sees a tensor
    {"ledger", "tensors"},
    {"ledger", "streams"},
    {"ledger", "transfer"},
    {"ledger", "paths"},
    {"ledger", "disk"},
    {"mover", "ledger_disk"},
    {"cli", "vllm"},
    {"sglang", "vllm"},
)
# Outside packages -> the rooms that may import them. numpy and the standard library are free.
OUTSIDE = {
    "vllm": {"vllm"},
    "torch": {"vllm"},
    "cupy": set(),
    "sglang": {"sglang"},
    "prometheus_client": {"vllm"},
    "rich": {"cli"},
    "typer": {"cli"},
    "matplotlib": {"cli"},
}
# Written in pieces, so that this file does not hold them itself.
WORDS = [
    ("\\.\\./" + "shared\\b", "a folder outside the project"),
    ("/ro" + "ot/|/wo" + "rk/", "a path of one machine"),
    ("\\bstud" + "io\\b|\\bCE" + "O\\b|\\bdevice " + "tool\\b|\\bdevice " + "machine\\b", "how the project is made"),
    (
        "field-" + "notes|field-" + "faults|vllm-connector" + "\\.md|contract" + "\\.md",
        "a document outside the project",
    ),
]


def code_files(root: Path, *suffixes: str) -> Iterator[Path]:
    for directory in CODE_DIRS:
        yield from sorted(path for path in (root / directory).rglob("*") if path.suffix in suffixes)


def name_of(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def too_long(sizes: dict[str, int], limit: int, habit: int, what: str) -> list[str]:
    """Problems of `sizes` (name -> lines): one over the limit, or more than a tenth of them over the habit."""
    problems = [f"{name}: {what} of {n} lines, the limit is {limit}" for name, n in sizes.items() if n > limit]
    over = sorted((n, name) for name, n in sizes.items() if n > habit)
    if len(over) > OVER_HABIT_SHARE * len(sizes):
        listed = ", ".join(f"{name} ({n})" for n, name in reversed(over[-8:]))
        problems.append(f"{len(over)} of {len(sizes)} {what}s are over {habit} lines, a tenth may be: {listed}")
    return problems


def check_file_sizes(root: Path) -> list[str]:
    sizes = {name_of(p, root): p.read_text().count("\n") for p in code_files(root, ".py", ".pyi", *CXX)}
    return too_long(sizes, FILE_LINES, FILE_LINES_HABIT, "file")


def check_function_sizes(root: Path) -> list[str]:
    sizes: dict[str, int] = {}
    for path in code_files(root, ".py", *CXX):
        functions = python_functions if path.suffix == ".py" else cxx_functions
        for line, name, lines in functions(path.read_text()):
            sizes[f"{name_of(path, root)}:{line} {name}"] = lines
    return too_long(sizes, FUNCTION_LINES, FUNCTION_LINES_HABIT, "function")


def python_functions(text: str) -> Iterator[tuple[int, str, int]]:
    """(first line, name, lines) of every function; a docstring does not count."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) else None
            docstring_lines = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            yield node.lineno, node.name, node.end_lineno - node.lineno + 1 - docstring_lines


def cxx_functions(text: str) -> Iterator[tuple[int, str, int]]:
    """(first line, name, lines) of every function body outside functions. Reads braces, not the grammar."""
    open_braces: list[tuple[str, int, str]] = []  # kind ("function", "block", "scope"), line of the header, name
    header, header_line, line = "", 1, 1
    for char in cxx_code(text):
        line += char == "\n"
        if char == "{":
            inside = any(kind != "scope" for kind, _, _ in open_braces)
            kind, name = ("block", "") if inside else cxx_brace_kind(header)
            open_braces.append((kind, header_line, name))
        elif char == "}" and open_braces:
            kind, start, name = open_braces.pop()
            if kind == "function":
                yield start, name, line - start + 1
        if char in "{};":
            header = ""
        elif header or not char.isspace():
            header_line = header_line if header else line
            header += char


def cxx_code(text: str) -> str:
    """`text` with comments, literals and preprocessor lines blanked; line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group().count("\n")

    skipped = (
        r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:\\\n|[^\n])*'
    )
    return re.sub(skipped, blank, text, flags=re.DOTALL | re.MULTILINE)


def cxx_brace_kind(header: str) -> tuple[str, str]:
    """What the brace after `header` opens: a namespace or class, a function (and its name), or something else."""
    if re.search(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$", header) and "=" not in header:
        return "scope", ""
    call = re.search(r"([\w:~]+|operator\S+)\s*\(", header)
    return ("function", call.group(1)) if call else ("block", "")


def check_cxx_includes(root: Path) -> list[str]:
    problems = []
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in CXX:
            continue
        name, room = name_of(path, root), path.relative_to(root / "csrc").parts[0]
        if room not in ROOMS:
            problems.append(f"{name}: room {room} is not in ROOMS of tests/test_tidy.py")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
            if match and (problem := wrong_include(name, room, match.group(1) == '"', match.group(2))):
                problems.append(f"{name}:{number}: {problem}")
    return problems


def wrong_include(name: str, room: str, quoted: bool, header: str) -> str:
    target = header.split("/")[0]
    if quoted:
        if "/" not in header or target not in ROOMS:
            return f'#include "{header}": write the path from csrc/, "room/header.h"'
        if target != room and target not in ROOMS[room]:
            return f"{room} may not use {target}, only {', '.join(sorted(ROOMS[room])) or 'itself'}"
    elif target in ("pybind11", "Python.h") and room != "bindings":
        return f"<{header}>: only bindings/ sees pybind11 and Python"
    elif CUDA_HEADER.match(header) and not CUDA_FILES.match(name):
        return f"<{header}>: CUDA headers only in cuda/, kernels/, device/cuda_* and transfer/cuda_*"
    return ""


def check_python_imports(root: Path) -> list[str]:
    problems = []
    package = root / "kvoffload"
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).with_suffix("").parts[0]
        if room == "__init__":
            continue
        if layer_of(room) is None:
            problems.append(f"{name_of(path, root)}: {room} is in no layer of tests/test_tidy.py")
            continue
        for line, module in imported_modules(path):
            if problem := wrong_import(room, module):
                problems.append(f"{name_of(path, root)}:{line}: {problem}")
    return problems


def layer_of(room: str) -> int | None:
    return next((i for i, layer in enumerate(LAYERS) if room in layer), None)


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import; `from kvoffload import x` is kvoffload.x."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "." * node.level
        elif isinstance(node, ast.ImportFrom) and node.module == "kvoffload":
            yield from ((node.lineno, f"kvoffload.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def wrong_import(room: str, module: str) -> str:
    top, _, rest = module.partition(".")
    if module.startswith("."):
        return "relative import: write kvoffload.<module>"
    if top != "kvoffload":
        rooms = OUTSIDE.get(top)
        return "" if rooms is None or room in rooms else f"{room} may not import {top}"
    target = rest.split(".")[0]
    target_layer, own_layer = layer_of(target), layer_of(room)
    if target_layer is None:
        return f"import the module, not the package: kvoffload.{target} is in no layer"
    if target_layer > own_layer or any({room, target} == pair for pair in NEVER_TOGETHER):
        return f"{room} may not import kvoffload.{target}"
    return ""


def check_words(root: Path) -> list[str]:
    texts = [*code_files(root, ".py", ".pyi", ".md", ".txt", ".sh", ".json", ".toml", *CXX)]
    texts += [p for p in root.glob("*") if p.is_file() and p.name != "LICENSE"]
    texts += [p for d in ("docs", ".ci", "cmake") for p in sorted((root / d).rglob("*")) if p.is_file()]
    problems = []
    for path in texts:
        text = path.read_text(errors="replace")
        for pattern, what in WORDS:
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f'{name_of(path, root)}:{line}: "{match.group()}" names {what}')
    return problems


CHECKS = [check_file_sizes, check_function_sizes, check_cxx_includes, check_python_imports, check_words]


@pytest.mark.parametrize("check", CHECKS)
def test_tree(check: Callable[[Path], list[str]]) -> None:
    problems = check(REPO)
    assert not problems, "\n" + "\n".join(problems)


def test_one_version() -> None:
    declared = re.search(r'^version = "(.+)"$', (REPO / "pyproject.toml").read_text(), re.MULTILINE)
    imported = re.search(r'^__version__ = "(.+)"$', (REPO / "kvoffload/__init__.py").read_text(), re.MULTILINE)
    assert declared is not None
    assert imported is not None, "kvoffload/__init__.py has no __version__"
    assert imported.group(1) == declared.group(1), "pyproject.toml and kvoffload/__init__.py name different versions"


LONG_CXX = "int f(int a) {\n" + "  a += 1;\n" * 70 + "  return a;\n}\n"
LONG_METHOD = "namespace kvo {\nstruct S : T<int> {\n  S() : a_{1}, b_(2) {}\n  " + LONG_CXX + "};\n}\n"
LONG_PYTHON = 'def f(a):\n    """Says nothing."""\n' + "    a += 1\n" * 71
PLANTED = [
    (check_file_sizes, "kvoffload/config.py", "x = 1\n" * 501, "kvoffload/config.py: file of 501 lines"),
    (check_file_sizes, "csrc/base/a.h", "int x;\n" * 301, "1 of 1 files are over 300 lines"),
    (check_function_sizes, "kvoffload/config.py", LONG_PYTHON, "config.py:1 f: function of 72 lines"),
    (check_function_sizes, "csrc/base/a.cpp", "// {\n" + LONG_CXX, "a.cpp:2 f: function of 73 lines"),
    (check_function_sizes, "csrc/base/a.cpp", LONG_METHOD, "a.cpp:4 f: function of 73 lines"),
    (check_cxx_includes, "csrc/ledger/a.h", '#include "memory/arena.h"\n', "a.h:1: ledger may not use memory"),
    (check_cxx_includes, "csrc/base/a.h", '#include "a.h"\n', "write the path from csrc/"),
    (
        check_cxx_includes,
        "csrc/memory/a.h",
        "\n#include <cuda_runtime.h>\n",
        "a.h:2: <cuda_runtime.h>: CUDA headers only",
    ),
    (check_cxx_includes, "csrc/transfer/a.cpp", "#include <cuda.h>\n", "a.cpp:1: <cuda.h>: CUDA headers only"),
    (check_cxx_includes, "csrc/device/a.cpp", "#include <pybind11/stl.h>\n", "only bindings/ sees pybind11"),
    (check_cxx_includes, "csrc/attic/a.h", "", "room attic is not in ROOMS"),
    (
        check_python_imports,
        "kvoffload/ledger.py",
        "from kvoffload.mover import Mover\n",
        "ledger may not import kvoffload.mover",
    ),
    (check_python_imports, "kvoffload/mover.py", "import kvoffload.cache\n", "mover may not import kvoffload.cache"),
    (
        check_python_imports,
        "kvoffload/cache.py",
        "from kvoffload import KVLayout\n",
        "import the module, not the package",
    ),
    (check_python_imports, "kvoffload/cli/a.py", "import vllm.config\n", "a.py:1: cli may not import vllm"),
    (
        check_python_imports,
        "kvoffload/tensors.py",
        "def f():\n    import torch\n",
        "tensors.py:2: tensors may not import torch",
    ),
    (check_python_imports, "kvoffload/cache.py", "from . import mover\n", "relative import"),
    (check_python_imports, "kvoffload/attic.py", "", "attic is in no layer"),
    (check_words, "docs/a.md", "see\n../" + "shared for more", "docs/a.md:2:"),
    (check_words, "Makefile", "cd /ro" + "ot/x", "Makefile:1:"),
]


@pytest.mark.parametrize(
    ("check", "name", "text", "expected"), PLANTED, ids=[f"{i}-{row[0].__name__}" for i, row in enumerate(PLANTED)]
)
def test_planted_violation_is_found(
    check: Callable[[Path], list[str]], name: str, text: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    problems = check(tmp_path)
    assert any(expected in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("csrc/device/cuda_device.cpp", '#include <cuda_runtime.h>\n#include "cuda/check.h"\n'),
        ("csrc/bindings/a.cpp", '#include <pybind11/pybind11.h>\n#include "ledger/directory.h"\n'),
        ("csrc/base/a.cpp", "enum class E { a, b };\nint f() {\n  return 1;\n}\n"),
        (
            "kvoffload/vllm/a.py",
            "import torch\nfrom vllm.config import VllmConfig\nfrom kvoffload.mover import Mover\n",
        ),
        ("kvoffload/mover.py", "from kvoffload import _C\nfrom kvoffload.layout import KVLayout\nimport numpy\n"),
    ],
    ids=lambda value: value if value.startswith(("csrc/", "kvoffload/")) else "",
)
def test_allowed_code_passes(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    assert [problem for check in CHECKS for problem in check(tmp_path)] == []
