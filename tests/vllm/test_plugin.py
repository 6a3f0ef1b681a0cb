"""The connector's name as an installed wheel gives it to vLLM: by an entry point, and without a price for others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
from test_engine import environment

pytestmark = pytest.mark.vllm

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
ENTRY_POINT = 'kvoffload = "kvoffload_plugin:register"'


def install(folder: Path) -> Path:
    """What pip leaves of an installed wheel's entry point, for a process that has `folder` on its path."""
    assert f'[project.entry-points."vllm.general_plugins"]\n{ENTRY_POINT}\n' in PROJECT.read_text()
    info = folder / "kvoffload_plugin_only-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvoffload-plugin-only\nVersion: 0\n")
    name, value = ENTRY_POINT.replace('"', "").split(" = ")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {value}\n")
    return folder


def run(code: str, folder: Path) -> str:
    settings = environment(PYTHONPATH=f"{environment()['PYTHONPATH']}:{folder}", VLLM_LOGGING_LEVEL="ERROR")
    done = subprocess.run(
        [sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_vllm_knows_the_name_and_nothing_of_ours_is_imported_for_it(tmp_path: Path) -> None:
    code = """
import sys
from vllm.plugins import load_general_plugins
load_general_plugins()
ours = [name for name in sys.modules if name.split(".")[0] == "kvoffload"]
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
cls = KVConnectorFactory.get_connector_class_by_name("KVOffloadConnector")
print(ours, cls.__module__, cls.__name__)
"""
    assert run(code, install(tmp_path)) == "[] kvoffload.vllm.connector KVOffloadConnector"


def test_importing_the_module_imports_nothing(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import kvoffload_plugin; print(sorted(set(sys.modules) - before))"
    assert run(code, tmp_path) == "['kvoffload_plugin']"


@pytest.mark.parametrize(
    "without",
    [
        "",
        "sys.modules['vllm'] = None",
        "import types; sys.modules['vllm.distributed.kv_transfer.kv_connector.factory'] = types.ModuleType('factory')",
    ],
)
def test_it_never_raises_however_often(without: str, tmp_path: Path) -> None:
    code = f"import sys; {without}\nimport kvoffload_plugin as p; p.register(); p.register(); print('fine')"
    assert run(code, tmp_path) == "fine"
