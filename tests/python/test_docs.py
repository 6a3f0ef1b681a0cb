"""What the documentation says is run or checked: examples in docstrings, and that every option is described."""

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import kvoffload
from kvoffload.cache import OPTIONS

REPO = Path(__file__).resolve().parents[2]
MODULES = [m.name for m in pkgutil.walk_packages(kvoffload.__path__, "kvoffload.", onerror=lambda _: None)]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("._C")])
def test_examples_in_docstrings(name):
    if name.startswith("kvoffload.vllm") and not importlib.util.find_spec("vllm"):
        pytest.skip("vllm is not installed")
    if name.startswith("kvoffload.cli"):
        pytest.importorskip("typer", reason="the extra `cli` is not installed")
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0, f"{failed} examples failed, see the captured output"


@pytest.mark.parametrize("name", ["KVLayout", "KVCache", "Mover", "Ledger"])
def test_public_classes_have_an_example(name):
    documented = [getattr(kvoffload, name)]
    documented += [value for key, value in vars(getattr(kvoffload, name)).items() if not key.startswith("_")]
    texts = [getattr(thing, "__doc__", None) or "" for thing in documented]
    assert any(">>> " in text for text in texts), f"kvoffload.{name} has no example in its docstring"


def connector_options():
    """The fields of `Options`, read from its source: importing it needs vllm."""
    tree = ast.parse((REPO / "kvoffload/vllm/options.py").read_text())
    options = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Options")
    return [node.target.id for node in options.body if isinstance(node, ast.AnnAssign)]


@pytest.mark.parametrize("option", sorted({*OPTIONS, *connector_options()}))
def test_every_option_is_described(option):
    rows = re.findall(r"^\| `(\w+)` \|", (REPO / "docs/tuning.md").read_text(), re.MULTILINE)
    assert option in rows, f"docs/tuning.md has no row for the option {option}"


def test_tuning_describes_no_option_that_is_not_there():
    text = (REPO / "docs/tuning.md").read_text()
    tables = text[text.index("## KVCache") : text.index("## KVLayout")]
    assert set(re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)) == {*OPTIONS, *connector_options()}


def stub_names():
    """Dotted names of everything public that kvoffload/_C.pyi declares."""
    for node in ast.parse((REPO / "kvoffload/_C.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef) and f.name[0] != "_"
            )


def module_names():
    for name, value in vars(kvoffload._C).items():
        if name.startswith("_"):
            continue
        yield name
        if isinstance(value, type):
            yield from (f"{name}.{attribute}" for attribute in vars(value) if not attribute.startswith("_"))


def test_stub_has_the_names_of_the_extension():
    assert set(stub_names()) == set(module_names())
